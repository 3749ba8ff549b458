// Package control is the broker at work: loops that compare what is with what
// should be, and take one step.
//
//	decide   the schedule loop: tables → Snapshot → scheduler.Plan
//	commit   one transaction: attempts, intents and reservations
//	act      loops that work from what is stored, and so resume after a crash
//	         at any line
//
// Each loop is level-triggered and safe to run twice: it reads the tables, does
// what is still undone, and says when to look again. Failures of one machine or
// provider never stop a loop, and a store that cannot be written never touches a
// workload: nothing is decided and no silence counts until it can be again.
package control
