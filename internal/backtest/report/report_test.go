package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/backtest"
)

func single(t *testing.T, policies ...string) (backtest.Result, backtest.Options) {
	t.Helper()
	o := backtest.Options{
		Market: "../testdata/toy/day", Length: 4 * time.Hour, Deadline: 6 * time.Hour, Delay: 12 * time.Minute,
		Every: time.Hour, Policies: policies, Timeline: true,
	}
	r, err := backtest.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r, o
}

func queue(t *testing.T, file string, policies ...string) backtest.QueueResult {
	t.Helper()
	r, err := backtest.RunQueue(t.Context(), backtest.QueueOptions{File: file, Policies: policies, Timeline: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// pages are reports of both kinds.
func pages(t *testing.T) map[string]string {
	r, o := single(t, "all")
	one, oneO := single(t, "on-demand")
	q := queue(t, "../testdata/queue/small.yaml", "all")
	none := queue(t, "../testdata/queue/small.yaml", "on-demand")
	none.Policies[0].Bound, none.Policies[0].Admitted = 0, 0
	return map[string]string{
		"single":   written(t, func(w io.Writer) error { return Single(w, r, o) }),
		"one":      written(t, func(w io.Writer) error { return Single(w, one, oneO) }),
		"queue":    written(t, func(w io.Writer) error { return Queue(w, q) }),
		"admitted": written(t, func(w io.Writer) error { return Queue(w, none) }),
	}
}

// A report is well-formed, names each chart for those who cannot see it, and
// neither loads nor runs anything.
func TestReportsStandAlone(t *testing.T) {
	for name, page := range pages(t) {
		t.Run(name, func(t *testing.T) {
			for _, bad := range []string{"<script", "http:", "https:", "src=", "href=", "NaN", "Inf", ">-0", "%!"} {
				if strings.Contains(page, bad) {
					t.Errorf("%q is in the page", bad)
				}
			}
			ids, refs, charts := map[string]bool{}, []string{}, 0
			var path []string
			said := map[string]string{} // by id
			d := xml.NewDecoder(strings.NewReader(page))
			for {
				tok, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("not well-formed: %v", err)
				}
				switch e := tok.(type) {
				case xml.StartElement:
					id := ""
					for _, a := range e.Attr {
						switch a.Name.Local {
						case "id":
							if id = a.Value; ids[id] {
								t.Errorf("two elements have the id %s", id)
							}
							ids[id] = true
						case "aria-labelledby":
							refs = append(refs, strings.Fields(a.Value)...)
							charts++
						}
					}
					path = append(path, id)
				case xml.EndElement:
					path = path[:len(path)-1]
				case xml.CharData:
					if id := path[max(0, len(path)-1):]; len(id) == 1 && id[0] != "" {
						said[id[0]] += string(e)
					}
				default:
				}
			}
			if charts == 0 && name != "admitted" {
				t.Error("no chart has a title")
			}
			for _, ref := range refs {
				if strings.TrimSpace(said[ref]) == "" {
					t.Errorf("%s says nothing", ref)
				}
			}
		})
	}
}

// What is drawn is in the tables too.
func TestFiguresAreInTables(t *testing.T) {
	r, o := single(t, "up", "ours")
	page := written(t, func(w io.Writer) error { return Single(w, r, o) })
	for _, s := range r.Policies {
		row := "<tr><th scope=\"row\">" + s.Name + "</th><td>" + usd(s.SumCost) + "</td><td>" + three(s.SumRatio) + "</td>"
		if !strings.Contains(page, row) {
			t.Errorf("no row %s", row)
		}
	}
	for _, want := range []string{"on spot", "waiting", "spot in east-a", "The timeline in words", "spot could be had"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
	q := queue(t, "../testdata/queue/small.yaml", "up")
	page = written(t, func(w io.Writer) error { return Queue(w, q) })
	for _, want := range []string{"Team vision, cap 60.00 USD", "Team open, no cap", "not admitted: on demand to its end needs", "caps broken"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// Names come from files: they are text, whatever is in them.
func TestNamesAreText(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "jobs.yaml")
	market, err := filepath.Abs("../testdata/toy/day")
	if err != nil {
		t.Fatal(err)
	}
	const evil = `<script>alert("x")</script>&'`
	text := "markets: " + market + "\nteams: [{name: '" + strings.ReplaceAll(evil, "'", "''") + "', budget: 50 USD}]\n" +
		"jobs: [{name: '" + strings.ReplaceAll(evil, "'", "''") + "', team: '" + strings.ReplaceAll(evil, "'", "''") + "', length: 1h, deadline: 2h}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	q := queue(t, file, "up")
	page := written(t, func(w io.Writer) error { return Queue(w, q) })
	if strings.Contains(page, "<script") || !strings.Contains(page, "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&amp;&#39;") {
		t.Error("a name was written as it is")
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		usd(0): "0.00", usd(999.999): "1,000.00", usd(1234567.5): "1,234,567.50", usd(-1234.5): "-1,234.50",
		clock(49*time.Hour + 5*time.Minute): "49:05", span(5400): "1h30m",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, c := range []struct {
		lo, hi float64
		n      int
		want   string
	}{{0, 60, 6, "[0 10 20 30 40 50 60]"}, {1, 1.47, 5, "[1 1.1 1.2 1.3 1.4]"}, {0, 0, 5, "[0]"}} {
		var got []string
		for _, v := range ticks(c.lo, c.hi, c.n) {
			got = append(got, short(v))
		}
		if s := "[" + strings.Join(got, " ") + "]"; s != c.want {
			t.Errorf("ticks from %v to %v: %s, want %s", c.lo, c.hi, s, c.want)
		}
	}
}
