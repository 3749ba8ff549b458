// Package providers is the contract between the broker and the clouds.
//
// An adapter implements [Provider]: seven methods. What only some clouds can do
// is a one-method interface beside it, resolved once by package managed.
//
// Every adapter:
//
//   - is safe for concurrent use, honours its context, and leaves no goroutine
//     behind after a call, save in [Interrupter.Interruptions];
//   - never retries and never sleeps: package managed paces and retries, and the
//     retries of SDKs are off, since a capacity answer must reach the scheduler
//     at once;
//   - returns fresh values that the caller may keep, with times in UTC and money
//     exact;
//   - answers a list whole or with an error, never in part: stale is better than
//     wrong;
//   - returns errors as [*Error], with a code from the closed list, and for a
//     launch with what is known about the outcome;
//   - reads its settings only from its configuration, and puts no secret into an
//     error, a tag or a log.
package providers
