//go:build unix

package pgtest_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"gpubroker/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func TestDatabasesAreApart(t *testing.T) {
	for range 2 { // the second would fail on the first one's table
		conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if _, err := conn.Exec(t.Context(), "CREATE TABLE x (id BIGINT)"); err != nil {
			t.Fatal(err)
		}
	}
}
