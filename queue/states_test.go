package queue_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpubroker/queue"
)

var update = flag.Bool("update", false, "write docs/states.md anew")

const statesDoc = "../docs/states.md"

// docs/states.md is what the tables say.
func TestStatesAreDocumented(t *testing.T) {
	want := statesText()
	if *update {
		if err := os.WriteFile(statesDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(statesDoc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is not current; run go test ./queue -update\n%s", statesDoc, diff)
	}
}

func statesText() string {
	var b strings.Builder
	b.WriteString(`# States

Generated from the tables in ` + "`queue/state.go`" + ` by ` + "`go test ./queue -update`" + `: change the
tables, not this page. A row makes only these moves; the check is in one function
per table (` + "`SetTask`, `SetAttempt`, `SetInstance`" + `), and the shared checker of
` + "`internal/control/invariant`" + ` tries every committed batch against them.

What has no row yet begins at the dot. A job has no state of its own: it follows
from the counts of its tasks (` + "`queue.Job.State`" + `).

`)
	section(&b, "Task", `One unit of a job, known by (job, index). Succeeded is for ever; failed and
cancelled are left only by `+"`gpubroker retry`"+`. Being preempted, moved, lost or never
launched brings a task back to queued and uses up none of its retries.`, queue.TaskMoves)
	section(&b, "Attempt", `One placing of a task on an instance. Only the task's current attempt can commit,
and its end has an outcome: `+"`succeeded`, `failed`, `preempted`, `moved`, `lost`,\n`launch_failed`, `setup_failed`, `stopped` or `cancelled`"+`. Only failed counts against the
task.`, queue.AttemptMoves)
	section(&b, "Instance", `Our record of a machine. It is stored before the machine is asked for; gone comes
only from the provider's word, and its money is settled after that.`, queue.InstanceMoves)
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func section(b *strings.Builder, name, intro string, moves []queue.Move) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n```mermaid\nstateDiagram-v2\n", name, intro)
	left := map[string]bool{}
	for _, m := range moves {
		from := m.From
		if from == "" {
			from = "[*]"
		}
		left[from] = true
		fmt.Fprintf(b, "    %s --> %s\n", from, m.To)
	}
	seen := map[string]bool{}
	for _, m := range moves {
		if !left[m.To] && !seen[m.To] {
			seen[m.To] = true
			fmt.Fprintf(b, "    %s --> [*]\n", m.To)
		}
	}
	b.WriteString("```\n\n| from | to | when |\n| --- | --- | --- |\n")
	for _, m := range moves {
		from := m.From
		if from == "" {
			from = "—"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", from, m.To, m.On)
	}
	b.WriteString("\n")
}
