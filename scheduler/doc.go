// Package scheduler decides what to do next: which waiting tasks go to which
// machines, which machines to rent, which to let go, and why.
//
//	Snapshot ─► reconcile running ─► per group, in order:
//	            fit ─► rate ─► cost to finish ─► market (policy) ─► admit ─► explain ─► Plan
//
// [Plan] is pure. It does no I/O and reads no clock: [Snapshot.Now] is a field,
// and every moment at which the same inputs could give another answer leaves as
// data in [Result.Wake]. The same snapshot gives the same result whatever the
// order of its rows; scores are exact money, so no processor changes a choice.
//
// Cost of a pass: groups × shapes + offers touched. Fit is decided once per
// needs and shape and kept in a [Memo]; within a shape the walk over offers by
// price stops when no later one can enter the best.
package scheduler
