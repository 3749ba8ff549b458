package store

import (
	"context"
	"database/sql"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// Load reads all that lives, in one snapshot.
func (s *Store) Load(ctx context.Context) (*queue.Image, error) {
	im := new(queue.Image)
	err := s.view(ctx, "load", func(tx *sql.Tx) error {
		for _, step := range []func() error{
			func() error { return into(ctx, s, tx, &im.Jobs, "jobs.load") },
			func() error { return into(ctx, s, tx, &im.Tasks, "tasks.load") },
			func() error { return into(ctx, s, tx, &im.Attempts, "attempts.load") },
			func() error { return into(ctx, s, tx, &im.Checkpoints, "checkpoints.load") },
			func() error { return into(ctx, s, tx, &im.Instances, "instances.load") },
			func() error { return into[budget.Account](ctx, s, tx, &im.Accounts, "accounts.load") },
			func() error { return into[budget.Hold](ctx, s, tx, &im.Holds, "holds.load") },
			func() error { return into(ctx, s, tx, &im.Cooldowns, "documents.cooldowns_load") },
			func() error { return into(ctx, s, tx, &im.Settings, "documents.settings_load") },
			func() error { return into(ctx, s, tx, &im.Tokens, "documents.tokens_load") },
			func() error { return tx.QueryRowContext(ctx, s.q.text("events.last")).Scan(&im.EventSeq) },
			func() error { return tx.QueryRowContext(ctx, s.q.text("entries.last")).Scan(&im.EntrySeq) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return im, nil
}

func into[T any](ctx context.Context, s *Store, tx *sql.Tx, to *[]*T, query string) (err error) {
	*to, err = list[T](ctx, s, tx, query)
	return err
}
