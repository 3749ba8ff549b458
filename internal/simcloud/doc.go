// Package simcloud is a cloud that fights back: the opponent of the broker in
// demonstrations and tests.
//
// A [World] holds offers with moving prices and capacities, quotas, machines
// and what they cost, and does what clouds do: refuses for want of capacity,
// throttles, answers 500 after it has created a machine, lists late, takes spot
// machines away with or without a warning, ends machines at an end that it
// keeps for them, and writes its own invoice. Every fault is scripted and
// seeded; the same script and the same calls give the same events.
//
// The world tells time by package time alone, so inside a testing/synctest
// bubble it lives in virtual time. What is due is done, in order and stamped
// with the moment at which it was due, before any call sees the world: the
// scheduling of goroutines changes nothing.
//
// Machines are run by a [Runner]: [Null] calls a function in this process,
// [Processes] starts real processes, cut off in a PID namespace where that is
// allowed. [Handler] is the HTTP API, [InProcess] a client for it without
// sockets, [Serve] a server.
//
// Limits: the state is in memory only and dies with the process. Machines share
// the host's network, disk and user; they are cut off so that they end for
// certain, not so that hostile code is held in.
package simcloud
