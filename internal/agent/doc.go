// Package agent is the program on each instance: it calls the broker, runs the
// attempts that the broker wants there, and ends them when it must.
//
// # Promises
//
//   - What the broker does not want does not run: an attempt that is missing from
//     the desired state, or whose token is refused, is killed with everything
//     that it started.
//   - Nothing runs past the lease. The end is a reading of CLOCK_BOOTTIME (send
//     time of the request + the grant), so neither suspension nor a set clock
//     moves it, and it is kept on disk for a restarted agent.
//   - One sync call is in flight at a time, and each bears a larger Sent than the
//     one before it, so that the broker can drop one that arrives late.
//   - The agent never powers a machine off unless the grant says so and the
//     machine's own metadata bears the id that the grant names.
//   - What was saved, written or logged before an outage of the broker or of the
//     object store is sent after it, as long as the lease holds.
//   - No credential of a cloud is on the machine, and secrets of a task are only
//     in its environment: neither on disk, nor in arguments, nor in logs.
//
// # Limits
//
//   - Commands run as the agent's own user, and share network and file system
//     with it. They are cut off so that they end for certain, not so that hostile
//     code is held in. [Process] says what holds where.
//   - A memory limit is exact only with cgroup v2; elsewhere the memory in use
//     is read every second and the task is killed above its limit. vCPU and disk
//     sizes are for placing, they are not enforced.
//   - The metadata address of ec2, gce and azure is closed to tasks only where nft
//     and cgroup v2 are there and the agent is root; elsewhere the agent says so
//     once in its log. On simcloud, whose machines share a network, it is open; no
//     task is told where it is.
//   - Attempts whose command runs do not outlive the agent: after a restart they
//     are reported as ended by the agent. Saves that are whole in the store are
//     still told, those that were on their way are lost; a command that had ended
//     before keeps its result, and its output is sent.
//   - What attempts use is looked at every 5 s, so that shorter peaks are not seen.
//     GPUs are read through nvidia-smi and amdgpu's sysfs; the figures of a GPU that
//     two attempts use at once are left out, and what cannot be read is unknown.
//
// # What the user data has to do
//
// The broker's user data arms the machine's own end before it downloads
// anything, and the agent moves it with each grant. The agent writes the file
// DIR/deadline (DIR is GPUBROKER_DIR), whole or not at all: one line with the
// lease's end in whole seconds of CLOCK_BOOTTIME, the clock that the first number
// in /proc/uptime shows. A detached root loop does the rest; for a machine that
// may be powered off its first line is
//
//	(e=1200; while sleep 2; do read u _ </proc/uptime; read d <"$DIR/deadline" && e=$d; [ "${u%.*}" -ge "$e" ] && poweroff -f; done) 2>/dev/null &
//
// where 1200 is lease 0 in seconds from boot. Where a file does not do, the
// command GPUBROKER_REARM is run by sh with each grant, with the seconds left in
// GPUBROKER_SECONDS.
//
// # Settings
//
// Read from the environment, or from a file of KEY=VALUE lines that only its
// owner may read (run --settings FILE):
//
//	GPUBROKER_URL        where the broker is reached, for example https://broker.example:8443
//	GPUBROKER_INSTANCE   the broker's id of this machine
//	GPUBROKER_TOKEN      join token
//	GPUBROKER_CA         the broker's CA: PEM, a path to it, or sha256:HEX of the certificate; empty means the system's
//	GPUBROKER_DIR        state, default /var/lib/gpubroker
//	GPUBROKER_LEASE      lease 0, from boot, default 20m
//	GPUBROKER_METADATA   simcloud, ec2, gce, azure or none; default simcloud where SIMCLOUD_METADATA is set, else none
//	GPUBROKER_METADATA_URL  another address of the metadata service
//	GPUBROKER_POWEROFF   command for the end action poweroff, default poweroff
//	GPUBROKER_END        command for the end action api
//	GPUBROKER_REARM      see above
//	GPUBROKER_ADDRESS    IP address at which the other machines of a gang reach this
//	                     one; default: that from which it reaches the broker
//	GPUBROKER_REPORT     how often progress is told, default 5s
//
// # How an attempt ends
//
// Layer "task" is the command's own doing, "machine" that of the provider (notice,
// lease, disk), "agent" a wish of the broker or a failure of ours. A success is
// exit code 0 with reason succeeded. After a stop signal exit code 0 is not told,
// since a program that saves and leaves in good order exits so.
//
// # What a task sees
//
// A clean environment: PATH, HOME and TMPDIR in its workspace, LANG=C.UTF-8, the
// job's own variables and secrets, CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES,
// and
//
//	GPUBROKER_JOB, GPUBROKER_TASK, GPUBROKER_INDEX, GPUBROKER_ATTEMPT
//	GPUBROKER_GPU                         id of its GPU, where it is known
//	GPUBROKER_INPUT, GPUBROKER_OUTPUT     local paths; the input as listed when it is no file
//	GPUBROKER_CHECKPOINT_DIR              where it saves
//	GPUBROKER_CHECKPOINT_INTERVAL         seconds between saves
//	GPUBROKER_RESUME                      number of the checkpoint in that folder; 0 for none
//	GPUBROKER_SAVE_NOW                    a file that appears when a save is wanted soon (rebalance advice)
//
// In its command and its environment {{input}} and {{output}} are replaced by
// local paths; the broker has filled the other placeholders.
package agent
