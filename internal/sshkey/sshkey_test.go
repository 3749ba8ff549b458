package sshkey_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpubroker/internal/sshkey"
)

// TestOpenSSHReadsIt: ssh-keygen finds the public key in the private one.
func TestOpenSSHReadsIt(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen: .ci/setup test installs it: ", err)
	}
	pair, err := sshkey.Derive("a secret", "a test")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(pair.Private), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), keygen, "-y", "-f", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != pair.Public {
		t.Errorf("ssh-keygen reads %q, want %q", got, pair.Public)
	}
}

// TestPairsDiffer: by secret and by purpose; the same ones give the same pair.
func TestPairsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, in := range [][2]string{{"a", "x"}, {"a", "y"}, {"b", "x"}} {
		first, err := sshkey.Derive(in[0], in[1])
		if err != nil {
			t.Fatal(err)
		}
		again, err := sshkey.Derive(in[0], in[1])
		if err != nil || again != first {
			t.Errorf("%v gives two pairs, %v", in, err)
		}
		if other, taken := seen[first.Private]; taken {
			t.Errorf("%v and %s give one pair", in, other)
		}
		seen[first.Private] = in[0] + in[1]
	}
	if _, err := sshkey.Derive("", "x"); err == nil {
		t.Error("a key came out of no secret")
	}
}
