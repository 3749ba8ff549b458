package store

import (
	"context"
	"database/sql"
	"time"
)

// Prune removes what ended before a moment, at most limit rows, and returns how
// many went: events, cool-downs, jobs with all that is theirs, settled machines
// with their holds, and inputs of jobs that never came. A job that is too large
// for one call goes in several, the job itself last. Ledger entries, accounts,
// settings and tokens stay.
func (s *Store) Prune(ctx context.Context, before time.Time, limit int) (int, error) {
	removed := 0
	err := s.write(ctx, "prune", 0, func(tx *sql.Tx) (int64, error) {
		at := micros(before)
		remove := func(query string, arg any) error {
			if removed >= limit {
				return nil
			}
			result, err := tx.ExecContext(ctx, s.q.text(query), arg, limit-removed)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			removed += int(n)
			return err
		}
		old := func(query string) (string, error) {
			rows, err := tx.QueryContext(ctx, s.q.text(query), at, max(limit-removed, 0))
			if err != nil {
				return "", err
			}
			defer rows.Close()
			var ids []string
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					return "", err
				}
				ids = append(ids, id)
			}
			return keySet(ids), rows.Err()
		}
		for _, query := range []string{"events.prune", "documents.cooldowns_prune", "inputs.prune_orphans"} {
			if err := remove(query, at); err != nil {
				return 0, err
			}
		}
		done, err := old("jobs.old")
		if err != nil {
			return 0, err
		}
		for _, query := range []string{"attempts.prune", "checkpoints.prune", "tasks.prune", "inputs.prune"} {
			if err := remove(query, done); err != nil {
				return 0, err
			}
		}
		if err := remove("jobs.prune", done); err != nil {
			return 0, err
		}
		gone, err := old("instances.old")
		if err != nil {
			return 0, err
		}
		if err := remove("holds.prune", gone); err != nil {
			return 0, err
		}
		return 0, remove("instances.prune", gone)
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}
