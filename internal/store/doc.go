// Package store keeps the broker's rows in SQLite or PostgreSQL: the one
// implementation of [queue.Store], with one text per query for both engines.
//
// # Promises
//
// A [queue.Batch] is one transaction. It is written whole, and only if the
// broker that made it still leads and every row has the version that the batch
// was built on; otherwise nothing of it is. When Commit returns nil, the rows
// survive a kill of the process and, if the disk keeps its word, a loss of
// power. When it returns [queue.ErrUnknown], the engine went away in the middle
// of the last step and would not say what became of it: read again before
// writing. Any other error means that nothing was written.
//
// A list is a snapshot of committed rows, never half of a batch. Load is one
// snapshot of everything.
//
// # Generation
//
// A store draws a generation when it is made, and every machine is tagged with
// it. A copy has the same generation as its original, so two brokers would each
// take the other's machines for their own. The store therefore remembers where
// its generation was made:
//
//   - SQLite: the path of the file and its inode. Beside the file lies
//     FILE.mark with the generation and the number of commits; it is never
//     ahead of the file, so a file with fewer commits than its mark is an older
//     backup put back in place.
//   - PostgreSQL: the server's system identifier, the database's id and the id
//     of one of its tables. A dump restored elsewhere or over the old tables
//     differs in one of them.
//
// Where that does not fit, [queue.Meta] says Copied and why, and goes on saying
// so until Adopt draws a new generation. Not noticed: a copy of the whole disk
// or machine with everything on it, a restore of both the file and its mark onto
// the same inodes, and for PostgreSQL a physical copy of the server (base
// backup, point-in-time recovery). Adopt after those by hand. The device
// number takes no part: btrfs, network disks and containers give the same disk
// another one at each mount.
//
// # Engines
//
// A SQLite file is for one broker: a lock on FILE.lock is held while it is open
// and is dropped by the kernel when the process dies. Other programs may read
// the file meanwhile. PostgreSQL is for several replicas: one leads, by the
// lease of [Store.Lead], whose clocks must agree to well under the lease's
// length; the epoch keeps a late one from writing even when they do not.
package store
