// Package agentapi is what the agent and the broker say to each other.
//
// There are two calls. Join happens once per machine and binds the first nonce.
// Sync carries everything else: the agent sends its whole observed state, the
// broker answers with its whole desired state, held up to [MaxWait] while
// nothing changes. Either side may repeat a call or lose an answer without harm.
//
// Grants are durations, so that no clock is compared with another: the agent
// stamps a request with its CLOCK_BOOTTIME and ends at that moment plus the
// grant, the broker counts the grant from its own receipt and a little longer.
//
// A credential goes in the Authorization header, never in a body.
package agentapi

import (
	"time"

	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// Paths of the calls, all POST with JSON, and the limits of both sides.
const (
	PathJoin = "/agent/v1/join"
	PathSync = "/agent/v1/sync"

	MaxWait = 20 * time.Second
	// MaxBody is the largest request or answer.
	MaxBody = 8 << 20
	// MaxOutput is the largest [Output] as JSON: it is told in each call until it
	// is published.
	MaxOutput = MaxBody / 2
	// PartSize is the size of every part of a save or an output but the last.
	PartSize = 64 << 20
)

// JoinRequest is a machine's first call.
type JoinRequest struct {
	Instance string  `json:"instance"`          // the broker's id of the machine; "" for a machine that somebody owns and that waits for work
	Token    string  `json:"token"`             // from the user data
	Nonce    string  `json:"nonce"`             // drawn once by the agent and kept on disk
	Host     string  `json:"host,omitzero"`     // name of an owned machine
	Version  string  `json:"version"`           // of the agent
	BootID   string  `json:"boot_id"`           // kernel's; another one means that the machine was restarted
	CloudID  string  `json:"cloud_id,omitzero"` // what the metadata address says
	Sent     Ticks   `json:"sent"`
	Machine  Machine `json:"machine"`
}

// JoinResponse gives the agent its credential. For an owned machine without
// work, Instance is "" and the agent asks again after Again.
type JoinResponse struct {
	Instance   string   `json:"instance,omitzero"`
	Credential string   `json:"credential,omitzero"`
	Lease      Grant    `json:"lease"`
	Again      Duration `json:"again,omitzero"`
}

// Ticks is a reading of CLOCK_BOOTTIME in nanoseconds: it runs through
// suspension and is never set.
type Ticks int64

// Duration is a length of time in milliseconds on the wire.
type Duration int64

// Of returns d in the wire's unit, rounded down.
func Of(d time.Duration) Duration { return Duration(d.Milliseconds()) }

// Std returns the duration.
func (d Duration) Std() time.Duration { return time.Duration(d) * time.Millisecond }

// Machine is what the agent found out about its machine.
type Machine struct {
	Arch   string   `json:"arch"`
	CPUs   int      `json:"cpus"`
	Memory int64    `json:"memory"` // bytes
	Disk   int64    `json:"disk"`   // bytes free for workspaces
	GPUs   []string `json:"gpus,omitzero"`
}

// Grant is a lease: the machine may live for For, counted from the moment that
// the agent sent the request which this answers.
type Grant struct {
	For Duration `json:"for"`
	// Action is what the agent does at the end: stop-tasks, poweroff, api.
	Action string `json:"action"`
	// CloudID must equal what the metadata address says before the agent powers
	// anything off.
	CloudID string `json:"cloud_id,omitzero"`
}

// Observed is the agent's whole state.
type Observed struct {
	Instance string            `json:"instance"`
	BootID   string            `json:"boot_id"`
	Sent     Ticks             `json:"sent"`
	Revision string            `json:"revision,omitzero"` // of the desired state that it follows
	Wait     Duration          `json:"wait"`              // how long the answer may be held
	Attempts []ObservedAttempt `json:"attempts"`
	Notice   *Notice           `json:"notice,omitzero"`
	DiskFree int64             `json:"disk_free,omitzero"`
}

// Notice is a warning that the machine's own metadata gave.
type Notice struct {
	Kind string   `json:"kind"` // preempt, rebalance
	In   Duration `json:"in"`   // from Sent until the machine is taken; 0 when not said
}

// Phase is where an attempt stands on the machine.
type Phase string

// The phases, in order.
const (
	Staging    Phase = "staging"   // fetching inputs and checkpoint
	Running    Phase = "running"   // the command runs
	Stopping   Phase = "stopping"  // it was signalled
	Uploading  Phase = "uploading" // the command is over; saves, outputs and logs are on their way
	PhaseEnded Phase = "ended"     // nothing of it runs and all that could be sent was sent
)

// ObservedAttempt is an attempt as the agent sees it.
type ObservedAttempt struct {
	ID    string `json:"id"`
	Token string `json:"token"`
	Phase Phase  `json:"phase"`
	// Busy is how long the command has run.
	Busy     Duration `json:"busy,omitzero"`
	Progress *float64 `json:"progress,omitzero"` // share of the work, 0 to 1, when known
	Units    *float64 `json:"units,omitzero"`    // what the progress pattern read, when there is one
	// Idle is how long neither progress, nor a log line, nor a save was seen.
	Idle  Duration `json:"idle,omitzero"`
	Saves []Save   `json:"saves,omitzero"` // complete manifests that the broker has not yet committed
	// Broken are checkpoints that could not be resumed from, newest first.
	Broken  []Broken `json:"broken,omitzero"`
	Resumed *int64   `json:"resumed,omitzero"` // the checkpoint it did resume from; 0 for none
	Output  *Output  `json:"output,omitzero"`  // uploaded and waiting to be published
	Want    Want     `json:"want,omitzero"`
	LogSize int64    `json:"log_size,omitzero"` // bytes of log uploaded
	Tail    *Tail    `json:"tail,omitzero"`     // live log while somebody watches
	Ended   *Ended   `json:"ended,omitzero"`    // the command's end
	// At is where the other members of its gang reach it; it is set once all is
	// staged, and the command waits for [DesiredAttempt.Gang].
	At *queue.Endpoint `json:"at,omitempty"`
	// Usage is told about once a minute while the command runs, and after its end;
	// nil means nothing new. It is under 1 KiB.
	Usage *queue.Usage `json:"usage,omitempty"`
}

// Save is a complete manifest in the object store.
type Save struct {
	Number   int64    `json:"number"`
	Digest   string   `json:"digest"` // of the manifest, "sha256:…"
	Bytes    int64    `json:"bytes"`
	Sent     int64    `json:"sent"` // uploaded for it
	Busy     Duration `json:"busy"` // of this attempt when the save was taken
	Progress *float64 `json:"progress,omitzero"`
}

// Broken says why a checkpoint could not be used.
type Broken struct {
	Number int64  `json:"number"`
	What   string `json:"what"`
}

// Output is a set of files whose parts are in the store.
type Output struct {
	Digest string       `json:"digest"` // over names, sizes and file digests
	Files  []OutputFile `json:"files"`
}

// OutputFile is one file. Name is relative to the output folder, and "" when the
// output is a single file.
type OutputFile struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
	Parts  []Part `json:"parts"`
}

// Part is one uploaded part, as the store confirmed it.
type Part struct {
	Number int    `json:"number"` // from 1
	ETag   string `json:"etag"`
	Bytes  int64  `json:"bytes"`
}

// Want asks for signed URLs beyond those granted ahead. Names are relative to
// the attempt: "save/7/12", "save/7/manifest", "log/3", "out/NAME/2",
// "get/manifest/6", "get/part/PATH".
type Want struct {
	Put []string `json:"put,omitzero"`
	Get []string `json:"get,omitzero"`
}

// Tail is a piece of live log.
type Tail struct {
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// Ended is how the command ended.
type Ended struct {
	ExitCode *int   `json:"exit_code,omitzero"` // nil when a signal or the agent ended it
	Signal   string `json:"signal,omitzero"`
	// Layer says whose doing it was: "task", "machine" or "agent".
	Layer  string        `json:"layer"`
	Reason reason.Reason `json:"reason,omitzero"`
}

// Desired is the broker's whole wish for the machine. An attempt that is not in
// it must be killed and forgotten.
type Desired struct {
	Revision string           `json:"revision"`
	Lease    Grant            `json:"lease"`
	Attempts []DesiredAttempt `json:"attempts"`
	// Leave means that the machine is no longer ours: stop all, forget the
	// credential; an owned machine joins again.
	Leave bool `json:"leave,omitzero"`
}

// DesiredAttempt is an attempt as the broker wants it.
type DesiredAttempt struct {
	ID    string `json:"id"`
	Token string `json:"token"`
	Slot  int    `json:"slot"`
	Task  Task   `json:"task"`

	Stop *Stop `json:"stop,omitzero"`
	// Committed is the newest save that the broker has committed, and Next the
	// number that the next one bears.
	Committed int64 `json:"committed"`
	Next      int64 `json:"next"`
	// Resume lists checkpoints to resume from, newest first; the first readable
	// one is taken.
	Resume []Resume `json:"resume,omitzero"`
	// Published is the digest of the output that has been published. A failed
	// publish is said in PublishErr.
	Published  string `json:"published,omitzero"`
	PublishErr string `json:"publish_err,omitzero"`
	// Recorded means that the end is in the broker's books: the agent forgets it.
	Recorded bool `json:"recorded,omitzero"`
	// Put and Get are signed URLs by name, see [Want].
	Put map[string]string `json:"put,omitzero"`
	Get map[string]string `json:"get,omitzero"`
	// Watch asks for live log from this offset on; nil means that nobody watches.
	Watch *int64 `json:"watch,omitzero"`
	// Gang is set once all members of a gang are staged: their commands may begin.
	Gang *Gang `json:"gang,omitempty"`
}

// Gang is what the members of a gang know of each other.
type Gang struct {
	Hosts []queue.Endpoint `json:"hosts"` // by rank
	// Key is the gang's own private key in OpenSSH's form, for [MPI] alone: every
	// member shows it as its host key and takes no other as a user's. It is never
	// logged.
	Key    string `json:"key,omitzero"`
	Public string `json:"public,omitzero"` // its public half, as in authorized_keys
}

// MPI is the launcher of a gang whose first member runs the command, and whose
// others run a remote shell for it.
const MPI = "mpi"

// Resume is one checkpoint that may be resumed from.
type Resume struct {
	Number   int64  `json:"number"`
	Digest   string `json:"digest"`   // of its manifest
	Manifest string `json:"manifest"` // signed URL
}

// Stop asks that an attempt ends.
type Stop struct {
	Why reason.Reason `json:"why"`
	// Grace is the time from the stop signal to SIGKILL.
	Grace Duration `json:"grace"`
	// In is when the machine is taken; 0 when it is not.
	In   Duration `json:"in,omitzero"`
	Save bool     `json:"save,omitzero"` // a last save is wanted if it fits
}

// Task is what the agent needs to run one.
type Task struct {
	Job     string            `json:"job"`
	Name    string            `json:"name"`
	Index   int               `json:"index"`
	Number  int               `json:"number"` // of the attempt
	Command []string          `json:"command,omitzero"`
	Shell   string            `json:"shell,omitzero"` // instead of Command
	Env     map[string]string `json:"env,omitzero"`
	Secrets map[string]string `json:"secrets,omitzero"` // never logged, never on disk
	Input   string            `json:"input,omitzero"`   // the task's input as the job lists it
	// InputPath is where the input is fetched to, relative to the workspace; "" when
	// the input is a plain value.
	InputPath string      `json:"input_path,omitzero"`
	Fetch     []Fetch     `json:"fetch,omitzero"`
	Workdir   *Fetch      `json:"workdir,omitzero"` // a tar.gz, unpacked into the workspace
	Output    *OutputSpec `json:"output,omitzero"`

	Checkpoint  *CheckpointSpec `json:"checkpoint,omitzero"`
	ProgressLog string          `json:"progress_log,omitzero"` // regular expression with one group
	ProgressOf  float64         `json:"progress_of,omitzero"`  // the number that means all done; 0 unknown
	StopSignal  string          `json:"stop_signal"`
	StopGrace   Duration        `json:"stop_grace"`
	Stall       Duration        `json:"stall,omitzero"`
	MaxDuration Duration        `json:"max_duration,omitzero"`

	VCPU   float64 `json:"vcpu,omitzero"`
	Memory int64   `json:"memory,omitzero"` // bytes; 0 means no limit
	Disk   int64   `json:"disk,omitzero"`
	GPUs   []int   `json:"gpus,omitzero"` // device numbers

	// Nodes is the number of machines that the task runs on at once; 0 means one,
	// and the rest does not count. Only the member of rank 0 keeps saves and outputs.
	Nodes    int    `json:"nodes,omitzero"`
	Rank     int    `json:"rank,omitzero"`
	Launcher string `json:"launcher,omitzero"` // [MPI], or "" for the command on every member
	Procs    int    `json:"procs,omitzero"`    // processes that a host file gives each member
}

// Leads reports whether the attempt's saves and outputs are the task's.
func (t *Task) Leads() bool { return t.Nodes < 2 || t.Rank == 0 }

// Fetch is a file to get before the command begins. Path is relative to the
// workspace.
type Fetch struct {
	Name   string `json:"name,omitzero"` // in Get; "" when URL is set
	URL    string `json:"url,omitzero"`
	Path   string `json:"path"`
	Digest string `json:"digest,omitzero"`
	Bytes  int64  `json:"bytes,omitzero"`
}

// OutputSpec says what the task leaves. Path is a file, or a folder when Folder
// is set, relative to the workspace; {{output}} is its local path.
type OutputSpec struct {
	Path   string `json:"path"`
	Folder bool   `json:"folder,omitzero"`
}

// CheckpointSpec says where the job saves and how a save is known to be whole.
type CheckpointSpec struct {
	Dir      string   `json:"dir"` // relative to the workspace
	Interval Duration `json:"interval"`
	Marker   string   `json:"marker,omitzero"`  // a file whose appearance completes a save; "" means rename-in
	Quiesce  Duration `json:"quiesce,omitzero"` // a set unchanged for so long is whole; 0 means never by time
	Append   []string `json:"append,omitzero"`  // names of files that are only appended to, and may grow while they are saved
}

// Problem is the body of an answer that is no success.
type Problem struct {
	Code    string `json:"code"` // stale, unknown, busy, …
	Message string `json:"message"`
}

// The codes of a [Problem].
const (
	// Stale comes with HTTP 410: the credential or token is no longer valid, and
	// everything it runs must be killed.
	Stale = "stale"
	// Busy comes with HTTP 503: ask again, nothing changes meanwhile.
	Busy = "busy"
	// Refused comes with HTTP 403: another machine has joined under this name.
	Refused = "refused"
)
