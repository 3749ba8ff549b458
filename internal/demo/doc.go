// Package demo plays one night of real work on a simulated cloud, in a minute and
// a half: clips are transcoded, images rendered, machines taken away, and the
// broker itself is killed. Then every result is checked.
//
// The cloud (gpubroker simcloud) and the broker (gpubroker serve) are processes
// of their own, reached as anybody would reach them; machines are processes that
// run the real agent. A promise that does not hold is a failed check.
package demo
