package control

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
)

// digest is how secrets are stored: never themselves.
func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func matches(secret, hash string) bool {
	return hash != "" && subtle.ConstantTimeCompare([]byte(digest(secret)), []byte(hash)) == 1
}

// A Problem is an answer to an agent that is no success.
type Problem struct {
	Status int
	agentapi.Problem
}

func (p *Problem) Error() string { return p.Message }

func stale(what string) error {
	return &Problem{410, agentapi.Problem{Code: agentapi.Stale, Message: what + "; whatever it runs must be ended"}}
}

func refused(what string) error {
	return &Problem{403, agentapi.Problem{Code: agentapi.Refused, Message: what}}
}

// Join binds a machine to the first nonce that comes with its token. The same
// nonce may come again, after a lost answer or a restart; another one is refused
// and alarmed.
func (b *Broker) Join(ctx context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error) {
	if req.Nonce == "" || req.Token == "" {
		return agentapi.JoinResponse{}, &Problem{400, agentapi.Problem{Code: "invalid", Message: "a join needs a token and a nonce"}}
	}
	if req.Host != "" {
		return b.joinHost(ctx, req)
	}
	return b.join(ctx, req)
}

// RoleHost is the role of an API token that lets an owned machine join, and
// nothing else.
const RoleHost = "host"

// mayHost reports whether a token lets owned machines join.
func (b *Broker) mayHost(token string, now time.Time) bool {
	for t := range b.state.View().Tokens.All() {
		if t.Role == RoleHost && matches(token, t.Hash) {
			return t.Revoked.IsZero() && (t.Expires.IsZero() || now.Before(t.Expires))
		}
	}
	return false
}

// joinHost answers a machine that somebody owns: it waits until work is bound to
// it, and then joins as that instance.
func (b *Broker) joinHost(ctx context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error) {
	if !b.mayHost(req.Token, b.now()) {
		return agentapi.JoinResponse{}, refused("the token lets no machine join; make one with gpubroker token create --role host")
	}
	for _, a := range b.accounts {
		if a.Hosts == nil || !a.Hosts.Knows(req.Host) {
			continue
		}
		instance, bound := a.Hosts.Waiting(req.Host)
		i := b.state.View().Instance(instance)
		if !bound || i == nil || !lives(i) || i.State == queue.InstanceTerminating {
			return agentapi.JoinResponse{Again: agentapi.Of(2 * time.Second)}, nil
		}
		return b.bind(ctx, instance, req, func(*queue.Instance) bool { return true })
	}
	return agentapi.JoinResponse{}, refused("no provider of type hosts lists a machine named " + req.Host)
}

func (b *Broker) join(ctx context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error) {
	return b.bind(ctx, req.Instance, req, func(i *queue.Instance) bool { return matches(req.Token, i.JoinHash) })
}

func (b *Broker) bind(ctx context.Context, id string, req agentapi.JoinRequest, allowed func(*queue.Instance) bool) (agentapi.JoinResponse, error) {
	var out agentapi.JoinResponse
	account := ""
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		out = agentapi.JoinResponse{}
		i := tx.EditInstance(id)
		if i == nil || !lives(i) || i.State == queue.InstanceTerminating {
			return stale("this machine is no longer wanted")
		}
		if !allowed(i) {
			return refused("the join token is wrong")
		}
		if i.Nonce != "" && i.Nonce != req.Nonce {
			b.event(tx, "instance.impostor", i, reason.New("impostor", "cloud_id", req.CloudID))
			return nil // answered below: the event has to be kept
		}
		i.Nonce = req.Nonce
		credential := tx.NewToken()
		i.Credential = digest(credential)
		if req.CloudID != "" && i.CloudID == "" {
			i.CloudID = req.CloudID
		}
		if i.State == queue.InstanceBooting || i.State == queue.InstanceLaunching {
			if err := queue.SetInstance(i, queue.InstanceReady); err != nil {
				return err
			}
			i.Ready, i.Unknown = tx.Now, time.Time{}
			if i.Launched.IsZero() {
				i.Launched = tx.Now
			}
			if len(tx.AttemptsOn(id)) == 0 {
				i.Idle = tx.Now
			}
			b.event(tx, "instance.ready", i, reason.New("joined", "after", tx.Now.Sub(i.Requested).Round(100*time.Millisecond)))
			b.booted(tx, i)
			if err := b.takeOver(tx, i); err != nil {
				return err
			}
		}
		out = agentapi.JoinResponse{Instance: id, Credential: credential, Lease: b.grantOf(i, tx.Now)}
		account = i.Provider
		return nil
	})
	if err == nil && out.Credential == "" {
		return out, refused("another machine has joined under this name; the broker's log says when")
	}
	if err == nil {
		b.hear(id)
		b.mu.Lock()
		b.joined[account] = b.now()
		b.mu.Unlock()
	}
	return out, err
}

func (b *Broker) grantOf(i *queue.Instance, now time.Time) agentapi.Grant {
	g := agentapi.Grant{For: agentapi.Of(grant(i, now)), Action: string(providers.EndStopTasks), CloudID: i.CloudID}
	if a := b.accounts[i.Provider]; a != nil && a.Capabilities().EndAction != "" {
		g.Action = string(a.Capabilities().EndAction)
	}
	return g
}

// Sync takes an agent's observed state and answers with what is desired of it,
// at once when that differs from what the agent follows, else when it does or
// the wait is over.
func (b *Broker) Sync(ctx context.Context, credential string, obs agentapi.Observed) (agentapi.Desired, error) {
	received := b.now()
	i := b.state.View().Instance(obs.Instance)
	if i == nil || !lives(i) {
		return agentapi.Desired{}, stale("this machine is no longer wanted")
	}
	if !matches(credential, i.Credential) {
		return agentapi.Desired{}, refused("the credential is not this machine's")
	}
	if !b.newest(&obs) {
		return agentapi.Desired{}, &Problem{503, agentapi.Problem{Code: agentapi.Busy, Message: "a later report of this agent is here already"}}
	}
	b.hear(obs.Instance)
	if err := b.observed(ctx, i, &obs); err != nil {
		return agentapi.Desired{}, err
	}
	// An answer is held for less than the silence that is looked into, so that a
	// quiet agent is never taken for a silent one, nor a held call for a sign of life.
	deadline := time.NewTimer(min(max(obs.Wait.Std(), 0), agentapi.MaxWait, b.set.Every.Silence*4/5))
	defer deadline.Stop()
	for {
		changed := b.state.Watch("instance/" + obs.Instance)
		d, err := b.desired(ctx, &obs, received)
		if err != nil {
			return agentapi.Desired{}, err
		}
		if d.Revision != obs.Revision || wants(&obs) {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return d, ctx.Err()
		case <-deadline.C:
			return b.desired(ctx, &obs, received)
		case <-changed:
		}
	}
}

// newest reports whether an agent's call is later than all before it: one that was
// held up on its way says what is no longer so.
func (b *Broker) newest(obs *agentapi.Observed) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := obs.Instance + "/" + obs.BootID
	if obs.Sent <= b.sent[key] {
		return false
	}
	b.sent[key] = obs.Sent
	return true
}

// wants reports whether the agent waits for signed URLs.
func wants(obs *agentapi.Observed) bool {
	return slices.ContainsFunc(obs.Attempts, func(o agentapi.ObservedAttempt) bool {
		return len(o.Want.Put)+len(o.Want.Get) > 0
	})
}

// desired draws what is wanted of a machine.
func (b *Broker) desired(ctx context.Context, obs *agentapi.Observed, received time.Time) (agentapi.Desired, error) {
	view := b.state.View()
	i := view.Instance(obs.Instance)
	if i == nil || !lives(i) {
		return agentapi.Desired{}, stale("this machine is no longer wanted")
	}
	// The grant counts from when the agent sent its call, which was before we
	// received it: the agent is always the earlier of the two.
	d := agentapi.Desired{Lease: b.grantOf(i, received), Leave: i.State == queue.InstanceTerminating}
	known := map[string]*agentapi.ObservedAttempt{}
	for k := range obs.Attempts {
		known[obs.Attempts[k].ID] = &obs.Attempts[k]
	}
	for a := range view.AttemptsOn(i.ID) {
		da, err := b.desiredAttempt(ctx, view, i, a)
		if err != nil {
			b.complain("sync", err)
			continue
		}
		d.Attempts = append(d.Attempts, da)
	}
	for _, o := range obs.Attempts {
		if a := view.Attempt(o.ID); o.Ended != nil && (a == nil || a.State == queue.AttemptEnded) {
			d.Attempts = append(d.Attempts, agentapi.DesiredAttempt{ID: o.ID, Token: o.Token, Recorded: true})
		}
	}
	d.Revision = revisionOf(&d)
	for k := range d.Attempts {
		if d.Attempts[k].Recorded {
			continue
		}
		if err := b.sign(ctx, view, &d.Attempts[k], known[d.Attempts[k].ID]); err != nil {
			b.complain("sign", err)
		}
	}
	return d, nil
}

// revisionOf is equal for wishes that are alike: signed URLs and the lease run on
// by themselves.
func revisionOf(d *agentapi.Desired) string {
	type essence struct {
		ID, Published, PublishErr string
		Stop                      *agentapi.Stop
		Committed                 int64
		Recorded                  bool
		Watch                     *int64
		Gang                      bool
	}
	var all []any
	all = append(all, d.Leave)
	for _, a := range d.Attempts {
		stop := a.Stop
		if stop != nil {
			stop = &agentapi.Stop{Why: stop.Why, Grace: stop.Grace, Save: stop.Save}
		}
		all = append(all, essence{a.ID, a.Published, a.PublishErr, stop, a.Committed, a.Recorded, a.Watch, a.Gang != nil})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return ""
	}
	return digest(string(text))[:16]
}

// observed records what an agent says. What changes nothing is not stored: a
// quiet machine costs no writes.
func (b *Broker) observed(ctx context.Context, i *queue.Instance, obs *agentapi.Observed) error {
	if n := obs.Notice; n != nil {
		at := time.Time{}
		if n.In > 0 {
			at = b.now().Add(n.In.Std())
		}
		if err := b.notice(ctx, i.ID, providers.NoticeKind(n.Kind), at); err != nil {
			return err
		}
	}
	view := b.state.View()
	for k := range obs.Attempts {
		o := &obs.Attempts[k]
		a := view.Attempt(o.ID)
		if a == nil || a.State == queue.AttemptEnded || a.Instance != i.ID || a.Token != o.Token {
			continue // desired leaves it out, and so it is killed
		}
		if err := b.observedAttempt(ctx, i, a, o); err != nil {
			return fmt.Errorf("attempt %s: %w", o.ID, err)
		}
	}
	return nil
}

func (b *Broker) observedAttempt(ctx context.Context, i *queue.Instance, a *queue.Attempt, o *agentapi.ObservedAttempt) error {
	usage := o.Usage
	if usage != nil && !usage.Plausible() {
		usage = nil
	}
	b.mu.Lock()
	if usage == nil {
		usage = b.progress[a.ID].Usage // the last that was told
	}
	b.progress[a.ID] = Progress{At: b.now(), Phase: string(o.Phase), Share: o.Progress, Units: o.Units, Busy: o.Busy.Std(), Usage: usage}
	b.mu.Unlock()
	b.tail(a.ID, o.Tail)
	saves := b.verified(ctx, a, o.Saves)
	broken := slices.DeleteFunc(slices.Clone(o.Broken), func(x agentapi.Broken) bool {
		c := b.state.View().Checkpoints.Get(state.CheckpointKey(a.TaskID, x.Number))
		return c == nil || !c.Broken.IsZero()
	})
	publish := o.Output != nil && a.Leads() && a.Publish == "" && o.Ended != nil && o.Ended.ExitCode != nil && *o.Ended.ExitCode == 0
	next := phaseOf(o, a)
	stalled := o.Phase == agentapi.Running && b.stalled(a, o)
	ended := o.Phase == agentapi.PhaseEnded && o.Ended != nil
	if len(saves)+len(broken) == 0 && !gathers(a, o) && !publish && next == "" && !stalled && !ended && (o.LogSize == a.LogSize || o.Phase != agentapi.PhaseEnded) {
		if o.Output != nil && o.Ended != nil {
			b.publish(ctx, a.ID, *o.Output)
		}
		return nil
	}
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		a := tx.EditAttempt(a.ID)
		if a == nil || a.State == queue.AttemptEnded || a.Token != o.Token {
			return nil
		}
		a.Busy, a.LogSize = max(a.Busy, o.Busy.Std()), max(a.LogSize, o.LogSize)
		if next != "" && next != a.State {
			if err := queue.SetAttempt(a, next); err != nil {
				return err
			}
			j := tx.Job(a.Job)
			if next == queue.AttemptRunning {
				a.Started = tx.Now.Add(-o.Busy.Std())
				if j != nil {
					tx.EmitTask("attempt.running", j, a, reason.Reason{})
				}
			}
		}
		if gathers(a, o) {
			if err := b.gather(tx, a, *o.At); err != nil {
				return err
			}
		}
		if o.Resumed != nil {
			a.Resume = *o.Resumed
		}
		for _, x := range broken {
			b.broken(tx, a, x.Number, x.What)
		}
		for _, s := range saves {
			b.save(tx, a, s.Number, s.Digest, s.Bytes, s.Sent, s.Busy.Std(), s.Progress, i.Region)
		}
		if stalled {
			if err := b.stall(tx, a); err != nil {
				return err
			}
		}
		if publish {
			a.Publish = o.Output.Digest // from here on nobody else may write this task's output
		}
		if ended {
			return b.over(tx, a, o)
		}
		return nil
	})
	if err == nil && o.Output != nil && o.Ended != nil {
		b.publish(ctx, a.ID, *o.Output)
	}
	return err
}

// phaseOf returns the state that an agent's phase means, or "" for no change.
func phaseOf(o *agentapi.ObservedAttempt, a *queue.Attempt) queue.AttemptState {
	var s queue.AttemptState
	switch o.Phase {
	case agentapi.Staging:
		s = queue.AttemptStarting
	case agentapi.Running:
		s = queue.AttemptRunning
	case agentapi.Stopping, agentapi.Uploading, agentapi.PhaseEnded:
		return ""
	}
	order := []queue.AttemptState{queue.AttemptAssigned, queue.AttemptStarting, queue.AttemptRunning, queue.AttemptDraining}
	if slices.Index(order, s) <= slices.Index(order, a.State) {
		return ""
	}
	if a.State == queue.AttemptAssigned && s == queue.AttemptRunning {
		return queue.AttemptStarting // the next report brings it on
	}
	return s
}

// over records the end of an attempt that its agent has seen through.
func (b *Broker) over(tx *state.Tx, a *queue.Attempt, o *agentapi.ObservedAttempt) error {
	e := o.Ended
	a.Sealed = true
	why := e.Reason
	ok := e.ExitCode != nil && *e.ExitCode == 0
	if why.IsZero() {
		switch {
		case ok:
			why = reason.New("succeeded")
		case e.ExitCode != nil:
			why = reason.New("exit_code", "code", *e.ExitCode)
		default:
			why = reason.New("signal", "signal", e.Signal)
		}
	}
	if a.State == queue.AttemptAssigned {
		// The agent was quicker than its reports.
		if err := queue.SetAttempt(a, queue.AttemptStarting); err != nil {
			return err
		}
	}
	spec, err := b.specs.of(tx.Job(a.Job))
	if err != nil {
		return err
	}
	b.mu.Lock()
	failed := b.published[a.ID]
	b.mu.Unlock()
	outputs := spec.Outputs != nil && a.Leads()
	switch {
	case ok && outputs && a.Publish == "":
		// Nothing came to be published though the job promised it.
		return b.endAttempt(tx, a.ID, queue.Failed, e.ExitCode, reason.New("output_failed", "what", "the command left no output"))
	case ok && failed != "":
		return b.endAttempt(tx, a.ID, queue.Failed, e.ExitCode, reason.New("output_failed", "what", failed))
	case ok && outputs && !b.done(a.ID):
		return nil // its output is on its way
	case ok && e.Layer == "task":
		return b.endAttempt(tx, a.ID, queue.Succeeded, e.ExitCode, why)
	case forOthers(a.Stop) && e.Layer != "task" && taken(why):
		return b.endAttempt(tx, a.ID, queue.Preempted, e.ExitCode, why)
	case a.Stop != nil:
		return b.endAttempt(tx, a.ID, a.Stop.Outcome, e.ExitCode, a.Stop.Why)
	case e.Layer == "task":
		return b.endAttempt(tx, a.ID, queue.Failed, e.ExitCode, why)
	default:
		return b.endAttempt(tx, a.ID, machineOutcome(why.Code), e.ExitCode, why)
	}
}

// machineOutcome is what an end means that the machine brought about: its agent
// stops tasks by itself on a notice and before the lease ends.
func machineOutcome(code reason.Code) queue.Outcome {
	switch code {
	case "preempted", "preempted_notice":
		return queue.Preempted
	case "lease_ended":
		return queue.Stopped
	case "agent_restarted":
		return queue.Lost
	default:
		return queue.SetupFailed
	}
}

// stalled reports whether a task has shown no sign of work for its stall time.
func (b *Broker) stalled(a *queue.Attempt, o *agentapi.ObservedAttempt) bool {
	j := b.state.View().Job(a.Job)
	if j == nil || a.Stop != nil {
		return false
	}
	spec, err := b.specs.of(j)
	if err != nil {
		return false
	}
	return spec.Stall > 0 && a.Leads() && o.Idle.Std() > spec.Stall.Std() || spec.MaxDuration > 0 && o.Busy.Std() > spec.MaxDuration.Std()
}

func (b *Broker) stall(tx *state.Tx, a *queue.Attempt) error {
	j := tx.Job(a.Job)
	spec, err := b.specs.of(j)
	if err != nil {
		return err
	}
	why, outcome := reason.New("stalled", "stall", spec.Stall), queue.Failed
	if spec.MaxDuration > 0 && a.Busy > spec.MaxDuration.Std() {
		why = reason.New("max_duration", "limit", spec.MaxDuration)
	}
	tx.EmitTask("task.stalled", j, a, why)
	return b.stopAttempt(tx, a.ID, queue.Stop{Why: why, Outcome: outcome})
}
