// Package rig runs a broker and a simulated cloud as processes of their own, as
// people run them, and reaches them as people reach them. The demo and the tests
// that kill processes are built on it.
//
// A process that it starts gets no signal of the terminal and is killed when
// this process ends (on Linux), however it ends: nothing is left running.
package rig
