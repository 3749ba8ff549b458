package yamlfile

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Error is one fault of a file, for people and for programs.
type Error struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // from 1
	Path    string `json:"path,omitzero"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitzero"`
	// Excerpt shows the line with those before it and a caret. Secrets are masked.
	Excerpt string `json:"excerpt,omitzero"`

	pos Pos
}

// Error is one line: file:line:column: path: message; hint.
func (e Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Errors are all faults of a file, in its order. It is never empty.
type Errors []Error

// Error is one line per fault.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Text shows every fault with its lines and a caret, as a terminal should.
func (es Errors) Text() string {
	var b strings.Builder
	for i, e := range es {
		if i > 0 {
			b.WriteString("\n")
		}
		head := e
		head.Hint = ""
		b.WriteString(head.Error() + "\n" + e.Excerpt)
		if e.Hint != "" {
			b.WriteString("      " + e.Hint + "\n")
		}
	}
	return b.String()
}

// finish fills in what people and programs read, sorts and drops repetitions.
// Faults of the file come first, then those of the flags.
func (es Errors) finish(file *source) Errors {
	out := slices.Clone(es)
	for i := range out {
		e := &out[i]
		if e.pos.source == nil {
			e.pos.source = file
		}
		e.File, e.Line, e.Column = e.pos.source.name, e.pos.Line, e.pos.Column
		e.Excerpt = e.pos.excerpt()
	}
	slices.SortStableFunc(out, func(a, b Error) int {
		if a.pos.source != b.pos.source {
			if a.pos.source == file {
				return -1
			}
			if b.pos.source == file {
				return 1
			}
			return strings.Compare(a.File, b.File)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(out, func(a, b Error) bool {
		return a.pos == b.pos && a.Path == b.Path && a.Message == b.Message
	})
}

// secretish finds keys whose values are better not shown, for files that could
// not be parsed.
var secretish = regexp.MustCompile(`(?i)((?:secret|password|passwd|token|credential|api_?key)[\w-]*["']?\s*[:=]\s*).*`)

const (
	before   = 2   // lines shown ahead of the faulty one
	longest  = 160 // runes shown of a line
	maskText = "•••"
)

func (p Pos) excerpt() string {
	if p.Line < 1 || p.Line > len(p.source.lines) {
		return ""
	}
	var b strings.Builder
	for n := max(1, p.Line-before); n <= p.Line; n++ {
		mark := "  "
		if n == p.Line {
			mark = "> "
		}
		fmt.Fprintf(&b, "%s%4d | %s\n", mark, n, p.source.shown(n))
	}
	line := []rune(p.source.lines[p.Line-1])
	if column := p.Column - 1; column <= min(len(line), longest) {
		pad := make([]rune, column)
		for i := range pad {
			pad[i] = ' '
			if line[i] == '\t' {
				pad[i] = '\t'
			}
		}
		b.WriteString("       | " + string(pad) + "^\n")
	}
	return b.String()
}

// shown is a line as it may be printed: without secrets, control characters or
// endless text.
func (s *source) shown(n int) string {
	text := s.lines[n-1]
	if from, ok := s.masked[n]; ok {
		r := []rune(text)
		text = string(r[:min(max(from-1, 0), len(r))]) + maskText
	}
	if s.broken {
		text = secretish.ReplaceAllString(text, "${1}"+maskText)
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
	if r := []rune(text); len(r) > longest {
		text = string(r[:longest]) + "…"
	}
	return text
}

// mask hides a value in all excerpts, from its first line to its last.
func (n *Node) mask() {
	if n.Pos.source == nil {
		return
	}
	s := n.Pos.source
	last := n.Pos.Line + strings.Count(strings.TrimRight(n.Text, "\n"), "\n")
	if strings.Contains(n.Text, "\n") {
		last++ // a block begins in the line after its key
	}
	for line := n.Pos.Line; line <= min(last, len(s.lines)); line++ {
		from := n.Pos.Column
		if line > n.Pos.Line {
			from = 1
		}
		if old, ok := s.masked[line]; !ok || from < old {
			s.masked[line] = from
		}
	}
}

// Problem is the error of a type that reads a scalar: what is wrong, and what
// was expected instead.
type Problem struct{ Message, Hint string }

func (p *Problem) Error() string {
	if p.Hint == "" {
		return p.Message
	}
	return p.Message + "; " + p.Hint
}
