// Package checkpoint carries saves of a task between a machine and the object
// store, and keeps the store tidy.
//
// A save is a manifest and the parts that it lists. Parts of at most 64 MiB lie
// under "job/index/attempt/number/part", the manifest beside them; it is written
// last, and lists parts relative to the task ("attempt/number/part"), so that it
// cannot point at anything of another task. Parts of earlier saves are used again
// where a block holds the same bytes. A save counts once the broker has written
// its row, which bears the digest of the manifest: what was not committed is as
// good as not there.
//
// On the machine: [Watcher] says when a save is complete, [Snapshot] takes it
// aside, [Saver] uploads it, [Restore] brings one back. All go by signed URLs;
// nothing here links an SDK. At the broker: [Verify] before a commit, [Adopt]
// after a start, [Sweep], and [Grants], which decides what an attempt may touch.
//
// Limits: a memory-mapped file that is written after its save was complete, or a
// file whose times are set back, may change without a trace in its times. What was
// uploaded is then refused if the bytes differ between hashing and sending, and
// otherwise is what the file held.
package checkpoint
