package api_test

import (
	"testing"
	"testing/synctest"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
)

// One job that is done says what would have been enough, or why nobody knows; one
// that runs, and a list, say nothing of it.
func TestRightSizing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.Submit, "media"))
		job := s.submit(c, "name: one\nresources: {gpu: none, vcpu: 1}\nrun: {command: [work, 5s]}\n")
		now, err := c.Job(t.Context(), job.ID)
		must(t, err)
		if now.RightSizing != nil {
			t.Errorf("before its end: %+v", now.RightSizing)
		}
		done := s.await(c, job.ID)
		if r := done.RightSizing; r == nil || r.Clear || r.Why.Code != "size_unmeasured" || len(r.Notes) > 0 {
			t.Errorf("nobody looked at it, and yet it says %+v", r)
		}
		list, err := c.Jobs(t.Context(), client.JobQuery{Limit: 10})
		must(t, err)
		if len(list.Jobs) != 1 || list.Jobs[0].RightSizing != nil {
			t.Errorf("the list says %+v", list.Jobs)
		}
	})
}
