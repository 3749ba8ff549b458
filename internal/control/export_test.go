package control

// Remembered counts what the broker keeps in memory beside the tables of what
// lives.
func (b *Broker) Remembered() map[string]int {
	v := b.state.View()
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]int{
		"jobs": v.Jobs.Len(), "tasks": v.Tasks.Len(), "attempts": v.Attempts.Len(), "on": v.On.Len(),
		"checkpoints": v.Checkpoints.Len(), "instances": v.Instances.Len(), "holds": v.Holds.Len(),
		"accounts": v.Accounts.Len(), "calling": len(b.calling), "seen": len(b.seen), "sent": len(b.sent),
		"published": len(b.isPublished) + len(b.published) + len(b.stages), "watching": len(b.watching), "progress": len(b.progress),
	}
}
