// Package spec reads job specs: what people submit.
//
// [Parse] turns a YAML file into a [Job], or reports every fault of it at once.
// A Job is as it was written, normalised; [Job.WithDefaults] adds what its
// preset and scenario bring. [Job.Canonical] is a stable JSON form, and
// [Decode] is its reverse, which holds the same rules: a job that was accepted
// at one side is valid at the other.
//
// docs/spec.md is the reference for people; docs/job.schema.json, generated
// from the structs here, serves editors.
package spec

import (
	"gpubroker/internal/quantity"
	"gpubroker/internal/scenario"
	"gpubroker/internal/secret"
	"gpubroker/internal/window"
)

// MaxTasks is the largest array.
const MaxTasks = 1_000_000

// NoGPU is the value of resources.gpu for work on the CPU.
const NoGPU = "none"

// Job is a job spec.
type Job struct {
	Name          string                `json:"name" required:"true" doc:"name of the job: letters, digits, dots, hyphens and underscores"`
	Project       string                `json:"project,omitzero" doc:"project that pays; default: that of the token"`
	Queue         string                `json:"queue,omitzero" doc:"queue of the broker's configuration, which brings a window, a priority and limits"`
	Priority      *int                  `json:"priority,omitzero" min:"0" max:"100" doc:"higher goes first; default: the queue's, else 50"`
	Scenario      string                `json:"scenario,omitzero" doc:"kind of work; sets what the GPU must have and by which figure GPUs are compared"`
	Preset        string                `json:"preset,omitzero" doc:"program whose saves and progress are known; may also stand under checkpoint"`
	Window        *window.Window        `json:"window,omitzero" doc:"hours in which tasks may run; default: the queue's, else always"`
	Deadline      *window.Deadline      `json:"deadline,omitzero" doc:"when all tasks should be done"`
	AfterDeadline string                `json:"after_deadline,omitzero" enum:"continue,carry-over,stop" doc:"what happens to tasks that are late; default: continue. carry-over waits for the next window"`
	Budget        *Budget               `json:"budget,omitzero" doc:"ceiling for the whole job"`
	ValueOfTime   *quantity.Money       `json:"value_of_time,omitzero" doc:"what an hour until the job is done is worth, with its currency: 5 USD; it decides between dear and quick, and is never spent"`
	Tasks         *Tasks                `json:"tasks,omitzero" doc:"array of tasks; without it the job is one task"`
	Nodes         int                   `json:"nodes,omitzero" min:"1" max:"1024" doc:"machines that each task needs at once, all or none; default 1"`
	Launcher      string                `json:"launcher,omitzero" enum:"none,mpi" doc:"with nodes: none runs the command on every machine, mpi on the first, where mpirun reaches the others; default none"`
	Resources     Resources             `json:"resources,omitzero" doc:"what each task needs; with nodes, on each machine"`
	Model         *Model                `json:"model,omitzero" doc:"the model that is trained or served; memory and number of GPUs follow from it"`
	Precision     string                `json:"precision,omitzero" enum:"fp64,fp32,tf32,bf16,fp16,fp8,int8,fp4,int4" meant:"bfloat16=bf16,float16=fp16,half=fp16,float32=fp32,float=fp32,single=fp32,float64=fp64,double=fp64,e4m3=fp8,mxfp8=fp8,nvfp4=fp4,mxfp4=fp4" doc:"number format of the arithmetic; GPUs without it do not fit, and others are compared by their rate in it"`
	Encode        *Video                `json:"encode,omitzero" doc:"video that is encoded"`
	Decode        *Video                `json:"decode,omitzero" doc:"video that is decoded on the GPU"`
	Users         *Users                `json:"users,omitzero" doc:"people with a picture each, for games and desktops: planned, not run"`
	Runtime       *Runtime              `json:"runtime,omitzero" doc:"what the software is built for: CUDA, ROCm or either"`
	Work          *Work                 `json:"work,omitzero" doc:"how long one task takes on a GPU that you know; the broker scales it to others"`
	Workdir       string                `json:"workdir,omitzero" doc:"folder that is uploaded and becomes the working directory"`
	Inputs        []Input               `json:"inputs,omitempty" doc:"files that every task needs"`
	Secrets       map[string]secret.Ref `json:"secrets,omitempty" doc:"environment variables whose values are secrets, by reference: env:NAME or file:/path"`
	Run           Run                   `json:"run,omitzero" doc:"what to run"`
	Checkpoint    *Checkpoint           `json:"checkpoint,omitzero" doc:"how the program saves its state, so that it can be interrupted"`
	Outputs       *Outputs              `json:"outputs,omitzero" doc:"where results go"`
	Progress      *Progress             `json:"progress,omitzero" doc:"how progress reads from the log"`
	Retry         *Retry                `json:"retry,omitzero" doc:"repetition of tasks that fail by themselves; interruptions do not count"`
	Spot          *Spot                 `json:"spot,omitzero" doc:"use of machines that can be taken away"`
	Exclusive     bool                  `json:"exclusive,omitzero" doc:"never start a task again before the provider says that its last machine is gone"`
	Stall         quantity.Duration     `json:"stall,omitzero" above:"zero" doc:"time without progress after which a task counts as stalled and is restarted"`
	MaxDuration   quantity.Duration     `json:"max_duration,omitzero" above:"zero" doc:"longest time that one attempt of a task may run"`

	profile    *scenario.Profile // of Scenario, found when the job was read
	unresolved bool              // nobody here knows Scenario
	lenient    bool              // accepted once: not judged anew
}

// RefusedKeys explains keys that people know from elsewhere.
func (Job) RefusedKeys() map[string]string {
	return map[string]string{
		"image":     "containers are not run by this version; give the command itself under run",
		"container": "containers are not run by this version; give the command itself under run",
		"command":   "commands stand under run: run: {command: […]}",
		"shell":     "scripts stand under run: run: {shell: …}",
		"env":       "variables stand under run: run: {env: {…}}",
		"gpu":       "GPUs stand under resources: resources: {gpu: …}",
		"gpus":      "GPUs stand under resources: resources: {gpu: …, gpu_count: …}",
		"count":     "the number of tasks stands under tasks: tasks: {count: …}",
		"num_nodes": "write nodes",
		"mpi":       "write launcher: mpi",
	}
}

// Budget is a ceiling of money.
type Budget struct {
	Max quantity.Money `json:"max" required:"true" doc:"most that the job may cost, with its currency: 25 USD"`
}

// Tasks is an array: exactly one of Count, List, Glob and File.
type Tasks struct {
	Count       int      `json:"count,omitzero" min:"1" max:"1000000" doc:"number of tasks; they differ by {{index}}"`
	List        []string `json:"list,omitempty" doc:"one task per value or file"`
	Glob        string   `json:"glob,omitzero" doc:"one task per file that matches, in a folder or an object store; ** crosses folders"`
	File        string   `json:"file,omitzero" doc:"one task per line of this file"`
	Parallelism int      `json:"parallelism,omitzero" min:"1" max:"1000000" doc:"most tasks at once; default: as many as finish on time at least cost"`
}

// Resources is what each task needs.
type Resources struct {
	GPU       []string              `json:"gpu,omitempty" single:"true" doc:"GPUs that will do, by id, family or common name; none for work on the CPU; default: any that fits"`
	GPUCount  int                   `json:"gpu_count,omitzero" min:"1" max:"16" doc:"GPUs per task, on one machine; default: as many as model or encode ask for, else 1"`
	GPUMemory quantity.Size         `json:"gpu_memory,omitzero" doc:"least nominal memory per GPU"`
	Require   scenario.Requirements `json:"require,omitempty" doc:"what the GPU must have: numbers mean at least, words one of"`
	Slots     int                   `json:"slots,omitzero" min:"1" max:"64" doc:"tasks that share one GPU; default 1, or the scenario's"`
	VCPU      int                   `json:"vcpu,omitzero" min:"1" max:"1024" doc:"CPU threads per task"`
	Memory    quantity.Size         `json:"memory,omitzero" doc:"main memory per task"`
	Disk      quantity.Size         `json:"disk,omitzero" doc:"disk per task, for inputs, outputs and saves"`
	Providers []string              `json:"providers,omitempty" single:"true" doc:"only at these providers of the configuration"`
	Regions   []string              `json:"regions,omitempty" single:"true" doc:"only in these regions"`
	Zones     []string              `json:"zones,omitempty" single:"true" doc:"only in these zones"`
	MaxPrice  *quantity.Money       `json:"max_price,omitzero" doc:"most that a machine may cost per hour"`
}

// RefusedKeys explains keys that people know from elsewhere.
func (Resources) RefusedKeys() map[string]string {
	return map[string]string{
		"gpus":         "write gpu for the model and gpu_count for the number",
		"accelerators": "write gpu for the model and gpu_count for the number",
		"cpu":          "write vcpu",
		"cpus":         "write vcpu",
		"ram":          "write memory",
		"nodes":        "nodes stands at the top of the file: the machines that each task needs; resources are of each",
	}
}

// Work is the length of one task on a known GPU.
type Work struct {
	Time quantity.Duration `json:"time" required:"true" doc:"how long one task takes"`
	On   string            `json:"on,omitzero" doc:"on this GPU; may be left out when resources.gpu names just one"`
}

// Input is a file that every task needs.
type Input struct {
	From string `json:"from" required:"true" doc:"where it is: s3://bucket/key, or a path"`
	To   string `json:"to" required:"true" doc:"where it goes, below the working directory"`
}

// Run is what to run: Command or Shell.
type Run struct {
	Command []string          `json:"command,omitempty" doc:"program and arguments, without a shell"`
	Shell   string            `json:"shell,omitzero" doc:"script for /bin/sh"`
	Env     map[string]string `json:"env,omitempty" doc:"environment variables"`
}

// RefusedKeys explains keys that people know from elsewhere.
func (Run) RefusedKeys() map[string]string {
	return map[string]string{
		"image":     "containers are not run by this version; give the command itself",
		"container": "containers are not run by this version; give the command itself",
		"cmd":       "write command",
		"args":      "arguments stand in command, after the program",
		"workdir":   "workdir stands at the top of the file",
	}
}

// Checkpoint says how the program saves its state.
type Checkpoint struct {
	Preset     string            `json:"preset,omitzero" doc:"program whose saves are known, the same as preset at the top"`
	Dir        string            `json:"dir,omitzero" doc:"folder of saves below the working directory; default: the preset's, else $GPUBROKER_CHECKPOINT_DIR"`
	Interval   quantity.Duration `json:"interval,omitzero" above:"zero" doc:"time between saves, as $GPUBROKER_CHECKPOINT_INTERVAL; default: computed from save time and market"`
	StopSignal string            `json:"stop_signal,omitzero" enum:"SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2" doc:"signal that makes the program save and end; default SIGTERM"`
	Complete   *Complete         `json:"complete,omitzero" doc:"what makes a save complete: rename (moved to its final name) or {marker: NAME}; default rename"`
	Quiesce    quantity.Duration `json:"quiesce,omitzero" above:"zero" doc:"instead of complete: a save that has not changed for so long is whole"`
	Append     []string          `json:"append,omitempty" single:"true" doc:"files that are only appended to, by name or pattern: they may grow while they are saved"`
	Keep       int               `json:"keep,omitzero" min:"1" max:"100" doc:"saves that are kept; default 3"`
	Size       quantity.Size     `json:"size,omitzero" above:"zero" doc:"about how large one save is, for the time and the cost of saving; default: that of the last save"`
}

// RefusedKeys explains keys that people know from elsewhere.
func (Checkpoint) RefusedKeys() map[string]string {
	return map[string]string{"marker": "write complete: {marker: NAME}"}
}

// Outputs says where results go.
type Outputs struct {
	To       string        `json:"to" required:"true" doc:"object or folder (ending in /) for results; {{stem}} or {{index}} tell tasks apart"`
	From     string        `json:"from,omitzero" doc:"file or folder below the working directory that is taken; default: {{output}}"`
	Size     quantity.Size `json:"size,omitzero" above:"zero" doc:"about how much one task's results are, for the time and the cost of moving them"`
	OnExists string        `json:"on_exists,omitzero" enum:"fail,overwrite,skip" doc:"when a foreign object is there already; default fail. skip takes the task as done"`
}

// Progress says how progress reads from the log.
type Progress struct {
	Log   string  `json:"log,omitzero" doc:"regular expression (RE2) with one group that captures a number"`
	Total float64 `json:"total,omitzero" min:"0" doc:"the number at which a task is done"`
}

// Retry says which failures are repeated.
type Retry struct {
	Failures      int   `json:"failures,omitzero" min:"0" max:"1000" doc:"how often a task that fails is started again; default 0"`
	OnlyExitCodes []int `json:"only_exit_codes,omitempty" single:"true" min:"1" max:"255" doc:"only after these exit codes; default: any"`
}

// Spot says how machines are used that can be taken away.
type Spot struct {
	Policy   string            `json:"policy,omitzero" enum:"auto,always,never" doc:"auto: where the work can be interrupted; always: also where it starts over; never: only on-demand"`
	MaxWait  quantity.Duration `json:"max_wait,omitzero" doc:"longest wait of a task for a spot machine before on-demand is taken; it begins anew when a machine is lost"`
	OnDemand string            `json:"on_demand,omitzero" enum:"auto,last-resort,never" meant:"allowed=auto,deadline=last-resort" doc:"auto: on-demand machines where they pay or the deadline needs them; last-resort: only once the deadline needs them, or max_wait is over; never: none. Default auto"`
}
