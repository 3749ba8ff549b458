// Termsvg draws what a program wrote to a terminal as an SVG picture: the last
// lines as the terminal showed them. It understands what the demo writes (line
// ends, carriage return, erase to the end of the line, colours are left out).
//
// The picture in the README is made by internal/docstest/picture.
package main

import (
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Sizes in SVG units: those of DejaVu Sans Mono at 13.
const (
	charWidth  = 7.83
	lineHeight = 17
	margin     = 16
	bar        = 30 // height of the title
)

func main() {
	title := flag.String("title", "", "text in the window's bar")
	from := flag.String("from", "", "leave out what comes before the first line that contains this")
	var cuts []string
	flag.Func("cut", "FIRST..LAST: leave out the lines between one that contains FIRST and the next that contains LAST (repeatable)", func(s string) error {
		cuts = append(cuts, s)
		return nil
	})
	flag.Parse()
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = io.WriteString(os.Stdout, Draw(*title, shorten(Lines(string(text)), *from, cuts)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "termsvg:", err)
		os.Exit(1)
	}
}

func shorten(lines []string, from string, cuts []string) []string {
	if i := index(lines, from); i > 0 {
		lines = lines[i:]
	}
	for _, cut := range cuts {
		first, last, _ := strings.Cut(cut, "..")
		a := index(lines, first)
		if a < 0 {
			continue
		}
		if n := index(lines[a+1:], last); n > 0 {
			lines = slices.Concat(lines[:a+1], []string{"     …"}, lines[a+1+n:])
		}
	}
	return lines
}

// index finds the first line that contains part; how many spaces are between
// words does not matter.
func index(lines []string, part string) int {
	for i, l := range lines {
		if strings.Contains(strings.Join(strings.Fields(l), " "), part) {
			return i
		}
	}
	return -1
}

// escape matches control sequences other than those that Lines acts on.
var escape = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// Lines returns the lines that a terminal shows after text was written to it.
func Lines(text string) []string {
	var out []string
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		var shown []rune
		for part := range strings.SplitSeq(line, "\r") {
			rest, erased := strings.CutPrefix(part, "\x1b[K")
			if erased {
				shown = nil
			}
			written := []rune(escape.ReplaceAllString(rest, ""))
			if len(written) < len(shown) {
				written = append(written, shown[len(written):]...)
			}
			shown = written
		}
		out = append(out, strings.TrimRight(string(shown), " "))
	}
	for len(out) > 0 && (out[len(out)-1] == "" || strings.HasPrefix(out[len(out)-1], "Script done")) {
		out = out[:len(out)-1]
	}
	if len(out) > 0 && strings.HasPrefix(out[0], "Script started") {
		out = out[1:]
	}
	return out
}

// Draw returns the lines as an SVG document.
func Draw(title string, lines []string) string {
	columns := 0
	for _, l := range lines {
		columns = max(columns, len([]rune(l)))
	}
	width := int(float64(columns)*charWidth) + 2*margin
	height := bar + len(lines)*lineHeight + 2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(title))
	b.WriteString(`<style>text{font:13px "DejaVu Sans Mono",Menlo,Consolas,"Liberation Mono",monospace;fill:#d7dce2;white-space:pre}` +
		`.t{fill:#8b95a1}.d{fill:#8b95a1}.s{fill:#f2c14e}.g{fill:#7bc275}.b{fill:#ee6c6c}</style>` + "\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1b1f24"/>`+"\n", width, height)
	for i, c := range []string{"#ee6c6c", "#f2c14e", "#7bc275"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="5" fill="%s"/>`, margin+4+18*i, bar/2+3, c)
	}
	fmt.Fprintf(&b, "\n"+`<text class="t" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", width/2, bar/2+8, html.EscapeString(title))
	for i, l := range lines {
		if strings.TrimSpace(l) == "" {
			continue
		}
		fmt.Fprintf(&b, `<text%s x="%d" y="%d" xml:space="preserve">%s</text>`+"\n",
			class(l), margin, bar+margin+i*lineHeight+8, html.EscapeString(l))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// class gives lines of a kind their colour.
func class(line string) string {
	trimmed := strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(trimmed, "FAIL"), strings.Contains(line, "KILL -9"), strings.Contains(line, "● the cloud takes"):
		return ` class="b"`
	case strings.HasPrefix(trimmed, "ok "), strings.Contains(line, "checks hold"):
		return ` class="g"`
	case strings.Contains(line, "● "):
		return ` class="s"`
	case strings.Contains(line, " spent, $"), trimmed == "…":
		return ` class="d"`
	}
	return ""
}
