// Package invariant states the promises of the broker as checks on what it
// writes and on what its clouds really hold. The property, simulation and fault
// tests share it.
//
// A [Checker] keeps its own copy of every row, built from committed batches
// alone, so that it judges the broker by what is durable. [Checker.Commit] looks
// at one batch as a move from what was there before; [Checker.World] compares the
// rows with the machines that truly live and what they have truly cost;
// [Checker.Tables] compares the broker's memory with the rows. It decides
// nothing and mends nothing; a breach is an error that names the promise.
package invariant
