package spec

import (
	"crypto/sha256"
	"encoding/hex"
)

// Class identifies the work of one task: jobs of one class run alike on the same
// machine, so that what one of them took tells of the others. It is a short digest
// of what runs and how it is configured, with templates unfilled; left out is what
// says which tasks there are, where and when they run, what they may cost, and what
// becomes of a save or a failure. Of the resources only the number of GPUs and of
// slots count: which machine it was is kept beside a rate.
//
// A work folder does not count by its content, which every edit changes: the job's
// name stands for it.
func (j *Job) Class() string {
	c := *j.WithDefaults()
	if c.Workdir == "" {
		c.Name = ""
	}
	c.Queue, c.Priority, c.Window, c.Deadline, c.AfterDeadline, c.Budget = "", nil, nil, nil, "", nil
	c.Tasks, c.Work, c.Inputs, c.Outputs, c.Secrets, c.Workdir = nil, nil, nil, nil, nil, ""
	c.Checkpoint, c.Progress, c.Retry, c.Spot, c.Exclusive, c.Stall, c.MaxDuration = nil, nil, nil, nil, false, 0, 0
	c.Resources = Resources{GPUCount: c.Resources.GPUCount, Slots: c.Resources.Slots}
	sum := sha256.Sum256(c.Canonical())
	return hex.EncodeToString(sum[:8])
}
