// Package template fills the placeholders of a job spec: {{input}}, {{output}},
// {{stem}}, {{index}}, {{name}} and {{job}}.
//
// A placeholder is a word in double braces. Other text in braces, such as
// {{.Name}}, is left alone, and \{{ stands for {{.
package template

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The placeholders.
const (
	Input  = "input"  // local path of the task's input, or its value when it is no file
	Output = "output" // local path of the file that becomes the output
	Stem   = "stem"   // name of the input without folders and without its last extension
	Index  = "index"  // number of the task, from 0
	Name   = "name"   // the job's name
	Job    = "job"    // the job's id
)

// Names lists the placeholders.
func Names() []string { return []string{Input, Output, Stem, Index, Name, Job} }

var placeholder = regexp.MustCompile(`\\?\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}|\\\{\{`)

// Find lists the placeholders of a text, once each in order of appearance,
// known or not.
func Find(text string) []string {
	var names []string
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		if name := m[1]; name != "" && m[0][0] != '\\' && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Values are what placeholders stand for; one without a value
// stays, without the spaces in its braces, for whoever knows it.
type Values map[string]string

// Render fills the placeholders of a text in one pass: a value that holds
// braces is not filled again.
func Render(text string, values Values) string {
	return placeholder.ReplaceAllStringFunc(text, func(m string) string {
		if m[0] == '\\' {
			return m[1:]
		}
		name := strings.TrimSpace(m[2 : len(m)-2])
		if v, ok := values[name]; ok {
			return v
		}
		return "{{" + name + "}}"
	})
}

// StemOf returns the name of an input without folders, query and last extension.
func StemOf(input string) string {
	s := input
	if strings.Contains(s, "://") {
		s, _, _ = strings.Cut(s, "?")
	}
	s = strings.TrimRight(s, "/")
	s = s[strings.LastIndexByte(s, '/')+1:]
	if i := strings.LastIndexByte(s, '.'); i > 0 {
		s = s[:i]
	}
	return s
}

// ForTask returns the values that are known without the machine: all but the
// local paths of input and output.
func ForTask(job, name string, index int, input string) Values {
	v := Values{Job: job, Name: name, Index: strconv.Itoa(index)}
	if input != "" {
		v[Stem] = StemOf(input)
	}
	return v
}
