// Package managed is the one wrapper around every adapter. The broker talks to
// a [Provider] of this package and never to an adapter.
//
// It promises:
//
//   - every try of a call has a deadline, and the caller's context ends all
//     waiting at once;
//   - calls are paced by two token buckets per provider, one for ends
//     (terminate, move-end) so that they never queue behind reads and launches,
//     one for the rest. A RateLimited answer closes its bucket for as long as
//     the provider says, up to [Options.RetryAfterMax], and halves its pace; the
//     pace recovers with success;
//   - a call is repeated only where [providers.Reactions] says so, and a launch
//     only when certainly no machine exists. A call that launches many is
//     repeated only when that holds for each of them;
//   - every error is a [*providers.Error] on one line with a code from the
//     closed list, free of the secrets given in [Options.Secrets]. A launch that
//     failed always has an outcome;
//   - what an adapter answers is checked against the contract. An offer that
//     breaks it is quarantined with a [Reason], a machine without our owner tag
//     never reaches the broker, and a machine that is not the one asked for is
//     an error. Each breach is counted and logged;
//   - a NotFound from Terminate is believed only after a look by our own
//     request id.
//
// It does not remember machines: whether a NotFound is too young to be believed
// (the provider's ListLag) is decided by the caller, who has the record. It does
// not cut off an adapter that ignores its context.
package managed
