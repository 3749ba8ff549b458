// Package providertest is the conformance suite of the providers' contract:
// every adapter passes it, or states for each check that it does not pass why.
//
// [Run] takes a [Harness] and makes one subtest of each check, named in
// [Checks] with the sentence of the contract that it tries. Every check opens an
// account of its own and leaves it empty. Beside its own sentence each check
// holds every answer that it sees to what is true of all: errors have the one
// type, a code from the closed list, an outcome for launches, one line and no
// secret; times are in UTC; no goroutine of the adapter is left behind.
//
// A check that needs a knob which the harness does not have fails. It is left
// out only through [Harness.Deviations], with a reason in words: nothing is
// skipped in silence. A check of an optional ability is skipped where the
// adapter does not have it.
//
// Limit: the suite sees what the adapter says. That the cloud itself did as
// told, only its console and its invoice show.
package providertest
