package archtest

import (
	"bufio"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// agentLimit bounds the agent's stripped size in bytes: machines download it
// before they earn anything.
const agentLimit = 20 << 20

// goBuild prepares a build as the Makefile does it, whatever this test was
// itself built with.
func goBuild(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if testing.Short() {
		t.Skip("links whole programs")
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux",
		"GOFLAGS=-buildvcs=false -tags=grpcnotrace,disable_grpc_modules")
	return cmd
}

// TestLinkerRemovesUnusedMethods guards the linker's removal of dead methods:
// one reachable look-up of a method by a name that is not constant switches it
// off for the whole program, which then grows by 12 MB and more.
func TestLinkerRemovesUnusedMethods(t *testing.T) {
	for _, program := range []string{"gpubroker", "gpubroker-agent"} {
		t.Run(program, func(t *testing.T) {
			cmd := goBuild(t, "-o", os.DevNull, "-ldflags=-dumpdep", "./cmd/"+program)
			out, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			edges := 0
			var culprits, last []string
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				line := lines.Text()
				if strings.Contains(line, " -> ") {
					edges++
				}
				if strings.Contains(line, "<ReflectMethod>") && len(culprits) < 10 {
					culprits = append(culprits, line)
				}
				if last = append(last, line); len(last) > 20 {
					last = last[1:]
				}
			}
			if err := lines.Err(); err != nil {
				t.Error(err)
				_, _ = io.Copy(io.Discard, out)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("go build: %v\n%s", err, strings.Join(last, "\n"))
			}
			if edges < 1000 {
				t.Fatalf("the linker printed %d edges: does it still know -dumpdep?", edges)
			}
			if len(culprits) > 0 {
				t.Errorf("a method is looked up by name at run time:\n%s", strings.Join(culprits, "\n"))
			}
		})
	}
}

// TestAgentIsSmallAndStatic builds the agent as it is shipped.
func TestAgentIsSmallAndStatic(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent")
	if out, err := goBuild(t, "-ldflags=-s -w", "-o", file, "./cmd/gpubroker-agent").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MB", float64(info.Size())/1e6)
	if info.Size() > agentLimit {
		t.Errorf("the agent is %.1f MB, over its limit of %.1f MB", float64(info.Size())/1e6, agentLimit/1e6)
	}
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Error("the agent is linked dynamically: it must run on any image")
		}
	}
}
