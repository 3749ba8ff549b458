// Package queue holds what the broker remembers: jobs, tasks, attempts,
// checkpoints and the machines they run on, with the tables of the moves each
// may make, and the [Store] that keeps them.
//
// Rows are plain values with a version. They change only through a [Batch],
// which a store commits whole or not at all; a batch built on an old version of
// a row, or by a broker that no longer leads, is refused.
package queue
