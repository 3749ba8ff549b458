// Package state is the broker's memory of all that lives: jobs, tasks,
// attempts, checkpoints, machines, leases.
//
// There is one writer. [State.Do] runs a function that stages changes in a
// [Tx]; the changes of all functions that wait at the same time are committed to
// the store as one batch, and only then seen by anybody. [State.View] is an
// immutable picture of the tables at one revision, made without copying them.
//
// A commit whose fate is unknown (a full disk, a lost database) fails its
// callers, and the tables are read anew from the store before the next change:
// memory never runs ahead of what is durable.
package state
