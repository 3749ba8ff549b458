package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"gpubroker/internal/pgtest"
	"gpubroker/internal/store"
	"gpubroker/queue"
	"gpubroker/queue/queuetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func TestSQLite(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queuetest.Engine{Runs: 25, New: func(t *testing.T) queuetest.Open {
		return opener("sqlite:" + filepath.Join(t.TempDir(), "broker.db"))
	}})
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queuetest.Engine{Replicas: true, Runs: 6, New: func(t *testing.T) queuetest.Open {
		return opener(pgtest.Database(t))
	}})
}

func opener(url string) queuetest.Open {
	return func(ctx context.Context) (queue.Store, error) {
		s, err := store.Open(ctx, url, store.Options{})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}
