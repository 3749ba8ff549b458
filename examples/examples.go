// Package examples holds job specs to begin with: one for each kind of work.
// README.md lists them.
package examples

import (
	"embed"
	"fmt"
)

//go:embed *.yaml
var files embed.FS

// Spec returns the text of an example by its file name.
func Spec(name string) ([]byte, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("there is no example %s: %w", name, err)
	}
	return text, nil
}

// Names lists the files, sorted.
func Names() []string {
	entries, _ := files.ReadDir(".") // what is embedded can be read
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
