package store

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

//go:embed migrations/*.sql
var migrationFiles embed.FS

// queries are the texts by "file.name".
type queries map[string]string

// readQueries splits the files at their "-- name:" lines.
func readQueries() (queries, error) {
	files, err := sqlFiles.ReadDir("sql")
	if err != nil {
		return nil, err
	}
	all := queries{}
	for _, f := range files {
		text, err := sqlFiles.ReadFile(path.Join("sql", f.Name()))
		if err != nil {
			return nil, err
		}
		for _, part := range strings.Split("\n"+string(text), "\n-- name: ")[1:] {
			name, body, _ := strings.Cut(part, "\n")
			all[strings.TrimSuffix(f.Name(), ".sql")+"."+strings.TrimSpace(name)] = strings.TrimSpace(body)
		}
	}
	return all, nil
}

// text returns a query. Names are constants in this package, so an unknown one
// is a mistake in it.
func (q queries) text(name string) string {
	t, known := q[name]
	if !known {
		panic(fmt.Sprintf("store: there is no query %q", name))
	}
	return t
}
