package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/agentapi"
)

// A gang whose launcher is mpi: its first member runs the command, in which mpirun
// begins its daemons on the others by ssh. They run an sshd of this attempt alone,
// which takes the gang's one key and no other, and begins what it is asked to as the
// command itself would have begun: in its workspace, with its variables. It is
// killed with the attempt.

// alias is the name by which the first member's mpirun and ssh know a member.
func alias(rank int) string {
	if rank == 0 {
		return "localhost"
	}
	return "node" + strconv.Itoa(rank)
}

// findSSH makes sure that OpenSSH is on the machine.
func findSSH(rank int) error {
	if rank == 0 {
		if _, err := exec.LookPath("ssh"); err != nil {
			return errors.New("agent: launcher mpi needs ssh on the first machine; install openssh-client")
		}
		return nil
	}
	if sshd() == "" {
		return errors.New("agent: launcher mpi needs sshd on every machine; install openssh-server")
	}
	return nil
}

// sshd is the server's path, which has to be absolute: it runs itself again for
// each call. "" means that there is none.
func sshd() string {
	if path, err := exec.LookPath("sshd"); err == nil {
		return path
	}
	if _, err := os.Stat("/usr/sbin/sshd"); err == nil {
		return "/usr/sbin/sshd"
	}
	return ""
}

// files writes what a member of the gang needs; values are contents by name. Only
// the owner may read them.
func (t *attempt) files(values map[string]string) error {
	for name, content := range values {
		if err := os.WriteFile(filepath.Join(t.gangDir(), name), []byte(content), 0o600); err != nil {
			return agentError(err)
		}
	}
	return nil
}

// mpiClient sets up ssh and mpirun on the first member, and returns their variables.
// Open MPI 4 reads those of OMPI_MCA, 5 those of PRTE_MCA.
func (t *attempt) mpiClient(gang *agentapi.Gang) (map[string]string, error) {
	who, err := user.Current()
	if err != nil {
		return nil, agentError(fmt.Errorf("agent: who runs this: %w", err))
	}
	at := func(name string) string { return filepath.Join(t.gangDir(), name) }
	var config, known strings.Builder
	for rank, h := range gang.Hosts {
		if rank == 0 {
			continue
		}
		fmt.Fprintf(&config, "Host %s\n\tHostName %s\n\tPort %d\n", alias(rank), h.Address, h.Port)
		fmt.Fprintf(&known, "[%s]:%d %s\n", h.Address, h.Port, gang.Public)
	}
	// Its own sshd may still be starting on a member: the call is tried again.
	fmt.Fprintf(&config, `Host *
	User %s
	IdentityFile %s
	UserKnownHostsFile %s
	GlobalKnownHostsFile /dev/null
	IdentitiesOnly yes
	IdentityAgent none
	StrictHostKeyChecking yes
	HostKeyAlgorithms ssh-ed25519
	BatchMode yes
	ConnectTimeout 10
	ConnectionAttempts 30
	LogLevel ERROR
`, who.Username, at("key"), at("known_hosts"))
	if err := t.files(map[string]string{"key": gang.Key, "known_hosts": known.String(), "ssh_config": config.String()}); err != nil {
		return nil, err
	}
	env := map[string]string{
		"GPUBROKER_SSH_CONFIG":           at("ssh_config"),
		"OMPI_MCA_plm_rsh_agent":         "ssh",
		"OMPI_MCA_plm_rsh_args":          "-F " + at("ssh_config"),
		"OMPI_MCA_orte_default_hostfile": at("hosts"),
		"PRTE_MCA_plm_ssh_agent":         "ssh",
		"PRTE_MCA_plm_ssh_args":          "-F " + at("ssh_config"),
		"PRTE_MCA_prte_default_hostfile": at("hosts"),
		// The names are the first member's: no other one calls a third.
		"OMPI_MCA_plm_rsh_no_tree_spawn": "1",
		"PRTE_MCA_plm_ssh_no_tree_spawn": "1",
	}
	if who.Uid == "0" {
		for _, name := range []string{"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"} {
			env[name] = "1"
		}
	}
	return env, nil
}

// mpiServer sets up the sshd of another member, and returns what starts it. What it
// begins has the variables of env; secrets are not among them, since they are never
// written to disk.
func (t *attempt) mpiServer(gang *agentapi.Gang, rank int, env []string) ([]string, error) {
	who, err := user.Current()
	if err != nil {
		return nil, agentError(fmt.Errorf("agent: who runs this: %w", err))
	}
	if who.Uid == "0" {
		// Where Debian's sshd locks its half without rights in.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return nil, agentError(err)
		}
	}
	at := func(name string) string { return filepath.Join(t.gangDir(), name) }
	enter := "cd " + quote(t.work()) + " || exit 1\n" +
		"exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
	var vars strings.Builder
	for _, v := range append(slices.Clone(env), marker+t.work()) {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&vars, "export %s=%s\n", name, quote(value))
	}
	me := gang.Hosts[rank]
	listen := me.Address
	if !ownAddress(listen) {
		listen = "0.0.0.0"
		if strings.Contains(me.Address, ":") {
			listen = "::"
		}
	}
	config := fmt.Sprintf(`Port %d
ListenAddress %s
HostKey %s
AuthorizedKeysFile %s
AllowUsers %s
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM %s
StrictModes no
DisableForwarding yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
PidFile none
LogLevel INFO
ForceCommand /bin/sh %s
`, me.Port, listen, at("key"), at("authorized_keys"), who.Username, pam(who), at("enter"))
	err = t.files(map[string]string{
		"key": gang.Key, "authorized_keys": gang.Public + "\n", "enter": vars.String() + enter, "sshd_config": config,
	})
	return []string{sshd(), "-D", "-e", "-f", at("sshd_config")}, err
}

// pam says whether sshd has to ask PAM about the account: without it, one whose
// password is locked may not log in, not even with a key.
func pam(who *user.User) string {
	if who.Uid != "0" {
		return "no"
	}
	shadow, err := os.ReadFile("/etc/shadow")
	if err != nil {
		return "no"
	}
	if _, err := os.Stat("/etc/pam.d/sshd"); err != nil || !bytes.Contains(append([]byte("\n"), shadow...), []byte("\n"+who.Username+":!")) {
		return "no"
	}
	return "yes"
}

// ownAddress reports whether an address is one of this machine's.
func ownAddress(address string) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// quote is a word for sh.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
