package simcloud

import (
	"net/http"
	"strings"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Do changes the world now, or at the time that the action names, counted from
// now. The result is of what was done now.
func (w *World) Do(a simapi.Action) (simapi.ActionResult, error) {
	if err := checkAction(a); err != nil {
		return simapi.ActionResult{}, apiError(http.StatusBadRequest, simapi.CodeInvalid, "%v", err)
	}
	w.enter()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return simapi.ActionResult{}, errClosed()
	case a.OnMachine > 0:
		w.onMachine[a.OnMachine] = append(w.onMachine[a.OnMachine], a)
		return simapi.ActionResult{}, nil
	case a.At > 0:
		w.at(w.now.Add(a.At.D()), func() { w.runAction(a, nil) })
		return simapi.ActionResult{}, nil
	}
	return w.do(a, nil)
}

// runAction does a scripted action; one that hits nothing is an event.
func (w *World) runAction(a simapi.Action, self *machine) {
	if _, err := w.do(a, self); err != nil {
		w.note("error", self, "", "scripted action: %v", err)
	}
}

func (w *World) do(a simapi.Action, self *machine) (simapi.ActionResult, error) {
	picked := func(p simapi.Pick) (*machine, error) {
		if m := w.pick(p, self); m != nil {
			return m, nil
		}
		return nil, apiError(http.StatusNotFound, simapi.CodeNotFound, "no live machine fits")
	}
	var res simapi.ActionResult
	switch {
	case a.Preempt != nil:
		m, err := picked(a.Preempt.Pick)
		if err != nil {
			return res, err
		}
		notice := w.cfg.Notice
		if a.Preempt.Notice != nil {
			notice = *a.Preempt.Notice
		}
		if !w.preempt(m, notice.D(), providers.CausePreempted) {
			return res, apiError(http.StatusConflict, simapi.CodeRefused, "machine %s is already going", m.id)
		}
		res.Machines = []string{m.id}
	case a.Rebalance != nil:
		m, err := picked(*a.Rebalance)
		if err != nil {
			return res, err
		}
		w.advise(m)
		res.Machines = []string{m.id}
	case a.Crash != nil:
		return w.inside(*a.Crash, "crash", picked, Process.Crash)
	case a.Freeze != nil:
		return w.inside(*a.Freeze, "freeze", picked, Process.Freeze)
	case a.Capacity != nil:
		return w.onOffers(a.Capacity.Match, func(o *offer) { w.setCapacity(o, a.Capacity.Machines) })
	case a.Price != nil:
		return w.onOffers(a.Price.Match, func(o *offer) {
			p := money.Rate(int64(o.price) / 100 * a.Price.Percent)
			if a.Price.Price != nil {
				p = *a.Price.Price
			}
			w.setPrice(o, max(p, 1))
		})
	case a.SelfEnd != nil:
		w.selfEnd = a.SelfEnd.SelfEnd
		if a.SelfEnd.EndAction != "" {
			w.endAction = a.SelfEnd.EndAction
		}
		w.note("action", nil, "", "self_end %s, end_action %s", w.selfEnd, w.endAction)
	case a.Fault != nil:
		w.addFault(*a.Fault)
		w.note("action", nil, "", "fault %s on %s added", a.Fault.Effect, a.Fault.Op)
	}
	return res, nil
}

func (w *World) inside(p simapi.Pick, word string, picked func(simapi.Pick) (*machine, error), do func(Process) error) (simapi.ActionResult, error) {
	m, err := picked(p)
	if err != nil {
		return simapi.ActionResult{}, err
	}
	if m.proc == nil {
		return simapi.ActionResult{}, apiError(http.StatusConflict, simapi.CodeRefused, "nothing runs on machine %s", m.id)
	}
	if err := do(m.proc); err != nil {
		return simapi.ActionResult{}, apiError(http.StatusConflict, simapi.CodeRefused, "%s machine %s: %v", word, m.id, strings.TrimPrefix(err.Error(), "simcloud: "))
	}
	w.note("action", m, "", "%s", word)
	return simapi.ActionResult{Machines: []string{m.id}}, nil
}

func (w *World) onOffers(match simapi.Place, do func(*offer)) (simapi.ActionResult, error) {
	var res simapi.ActionResult
	for _, o := range w.offers {
		if o.Matches(match) {
			do(o)
			res.Places = append(res.Places, o.Place.String())
		}
	}
	if len(res.Places) == 0 {
		return res, apiError(http.StatusNotFound, simapi.CodeNoOffer, "no market fits %s", match)
	}
	return res, nil
}
