package store

import "database/sql"

// Writer is the pool that writes, for tests that get in its way.
func (s *Store) Writer() *sql.DB { return s.writer }

// Reader is the pool that reads.
func (s *Store) Reader() *sql.DB { return s.reader }

// Query returns the text of a query.
func (s *Store) Query(name string) string { return s.q.text(name) }
