package spec

// LauncherMPI is the launcher whose members run a remote shell for mpirun.
const LauncherMPI = "mpi"

// Gang reports whether each task needs several machines at once.
func (j *Job) Gang() bool { return j.Nodes > 1 }

// gangVariables tell a member of a gang its place. The count of processes,
// WORLD_SIZE, is for the launcher to say, and is left to the command.
var gangVariables = [...]string{"NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"}

func checkGang(j *Job, report reporter, faulty func(string) bool) {
	if faulty("nodes") {
		return
	}
	if !j.Gang() {
		if j.Launcher == LauncherMPI {
			report("launcher", "add nodes, for example nodes: 4; on one machine mpirun needs nothing from the broker", "there is one machine")
		}
		return
	}
	if j.Resources.Slots > 1 {
		report("resources.slots", "leave it out", "each of the %d machines of a task is its own, and is not shared", j.Nodes)
	}
	for _, name := range gangVariables {
		if _, ok := j.Run.Env[name]; ok {
			report("run.env."+name, "leave it out", "with nodes this is the broker's to say")
		}
		if _, ok := j.Secrets[name]; ok {
			report("secrets."+name, "leave it out", "with nodes this is the broker's to say")
		}
	}
}
