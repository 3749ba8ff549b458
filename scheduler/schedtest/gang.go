package schedtest

import (
	"gpubroker/providers"
	"gpubroker/scheduler"
)

func (c *checker) count(g *scheduler.Group, n int) {
	c.placed[g.ID] += n
	c.job[g.Job] += n
}

// gangs makes sure that every gang is whole: as many machines as it needs, of one
// market, each of them its own; and that nothing of a gang stands apart.
func (c *checker) gangs() {
	type set struct {
		group    string
		market   providers.Market
		machines int
	}
	sets := map[int]*set{}
	add := func(gang int, group string, m providers.Market, tasks, slots int) {
		g := c.groups[group]
		if g == nil || (gang > 0) != (g.Needs.Nodes > 1) {
			c.fail("%s is placed as gang %d", group, gang)
			return
		}
		if gang == 0 {
			return
		}
		s := sets[gang]
		if s == nil {
			s = &set{group: group, market: m}
			sets[gang] = s
		}
		s.machines++
		if s.group != group || s.market != m || tasks != 1 || slots != 1 {
			c.fail("gang %d of %s in %s has %d of %s on a machine of %d slots in %s", gang, s.group, s.market, tasks, group, slots, m)
		}
	}
	for _, a := range c.r.Assigns {
		for i := range c.s.Machines {
			m := &c.s.Machines[i]
			if m.ID != a.Machine {
				continue
			}
			slots := m.Slots
			if a.Slots > 0 {
				slots = a.Slots
			}
			if a.Gang > 0 && m.Used > 0 {
				c.fail("gang %d takes machine %s, which works", a.Gang, m.ID)
			}
			add(a.Gang, a.Group, m.Market, a.Count, slots)
		}
	}
	for i := range c.r.Launches {
		l := &c.r.Launches[i]
		if l.Gang > 0 && len(l.More) > 0 {
			c.fail("a machine of gang %d is shared", l.Gang)
		}
		if l.Takes == "" { // see [checker.running]
			add(l.Gang, l.Group, l.Market, l.Tasks, l.Slots)
		}
	}
	for n, s := range sets {
		g := c.groups[s.group]
		if s.machines != g.Needs.Nodes {
			c.fail("gang %d of %s has %d machines of %d", n, s.group, s.machines, g.Needs.Nodes)
		}
		c.count(g, 1)
	}
}
