package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	text := "Script started on a day\n" +
		"one\r\n" +
		"  1.0s  working\r\x1b[K  2.0s  at it\r\x1b[Kdone \x1b[1mwell\x1b[0m\r\n" +
		"longer\rLO\n" +
		"\r\n" +
		"Script done on a day\n"
	want := []string{"one", "done well", "LOnger"}
	if diff := cmp.Diff(want, Lines(text)); diff != "" {
		t.Error(diff)
	}
}

func TestShorten(t *testing.T) {
	lines := []string{"build", "start", "one", "two", "three   more", "end", "sum"}
	for _, c := range []struct {
		from string
		cuts []string
		want []string
	}{
		{"start", []string{"one..end"}, []string{"start", "one", "     …", "end", "sum"}},
		{"", []string{"build..one", "two..end"}, []string{"build", "     …", "one", "two", "     …", "end", "sum"}},
		{"", []string{"nothing..end", "one..nothing", "one..two"}, lines},
		{"three more", nil, []string{"three   more", "end", "sum"}},
	} {
		if diff := cmp.Diff(c.want, shorten(lines, c.from, c.cuts)); diff != "" {
			t.Errorf("from %q, cuts %q:\n%s", c.from, c.cuts, diff)
		}
	}
}

// The picture is well-formed whatever was written.
func TestDraw(t *testing.T) {
	picture := Draw(`a <b> & "c"`, []string{"x < y && z", "", "  ok    it's \"fine\""})
	d := xml.NewDecoder(strings.NewReader(picture))
	var texts []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		if c, ok := token.(xml.CharData); ok && strings.TrimSpace(string(c)) != "" {
			texts = append(texts, string(c))
		}
	}
	want := []string{`a <b> & "c"`, "x < y && z", "  ok    it's \"fine\""}
	if diff := cmp.Diff(want, texts[1:]); diff != "" { // the first is the style
		t.Error(diff)
	}
}
