package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// The types of operations on instances.
const (
	opInsert    = "insert"
	opDelete    = "delete"
	opPreempted = "compute.instances.preempted"
	opDeferred  = "compute.instances.deferredDelete" // the run duration is over
	opGuest     = "compute.instances.guestTerminate"
	opHostError = "compute.instances.hostError"
)

func endedBy(c providers.Cause) string {
	switch c {
	case providers.CausePreempted, providers.CausePrice:
		return opPreempted
	case providers.CauseExpired:
		return opDeferred
	case providers.CauseGuest:
		return opGuest
	case providers.CauseUser:
		return opDelete
	default:
		return opHostError
	}
}

// How long an insert takes to start and to be done. Google's takes seconds; the
// fake's is as quick as its machines.
const (
	opStarts = 100 * time.Millisecond
	opTakes  = 300 * time.Millisecond
)

// waitLimit is how long operations.wait is held (discovery document).
const waitLimit = 2 * time.Minute

type operation struct {
	id        uint64
	name      string
	typ       string
	zone      string // or region
	region    string
	target    string // path below the project
	targetID  uint64
	requestID string
	user      string
	at        time.Time
	done      time.Time // zero until it is known
	failed    *opError
}

type opError struct {
	code, message string
	status        int
	statusText    string
	details       []any
}

// operation records a new operation on a machine. Locked.
func (s *Server) operation(i *instance, typ string, at time.Time) *operation {
	return s.record(&operation{typ: typ, zone: i.zone, target: "zones/" + i.zone + "/instances/" + i.name, targetID: i.id, at: at})
}

// record gives an operation its id and name. Locked.
func (s *Server) record(op *operation) *operation {
	op.id = s.nextID()
	op.user = "system"
	if op.typ == opInsert || op.typ == opDelete {
		op.user = "broker@" + Project + ".iam.gserviceaccount.com"
	}
	prefix := "operation"
	if op.user == "system" {
		prefix = "systemevent"
	}
	op.name = fmt.Sprintf("%s-%d-%x", prefix, op.at.UnixMilli(), op.id)
	s.operations = append(s.operations, op)
	return op
}

func (op *operation) status(now time.Time) string {
	switch {
	case !op.done.IsZero() && !now.Before(op.done):
		return "DONE"
	case now.Before(op.at.Add(opStarts)):
		return "PENDING"
	default:
		return "RUNNING"
	}
}

func (op *operation) view(now time.Time) object {
	status := op.status(now)
	v := object{
		"kind": "compute#operation", "id": strconv.FormatUint(op.id, 10), "name": op.name, "operationType": op.typ,
		"targetLink": link(op.target), "targetId": strconv.FormatUint(op.targetID, 10),
		"status": status, "user": op.user, "insertTime": stamp(op.at),
		"progress": map[string]int{"PENDING": 0, "RUNNING": 50, "DONE": 100}[status],
	}
	scope := "zones/" + op.zone
	if op.region != "" {
		scope = "regions/" + op.region
		v["region"] = link(scope)
	} else {
		v["zone"] = link(scope)
	}
	v["selfLink"] = link(scope + "/operations/" + op.name)
	if op.requestID != "" {
		v["clientOperationId"] = op.requestID
	}
	if op.typ == opPreempted {
		v["statusMessage"] = "Instance was preempted."
	}
	if status != "PENDING" {
		v["startTime"] = stamp(op.at)
	}
	if status != "DONE" {
		return v
	}
	v["endTime"] = stamp(op.done)
	if f := op.failed; f != nil {
		e := object{"code": f.code, "message": f.message}
		if len(f.details) > 0 {
			e["errorDetails"] = f.details
		}
		v["error"] = object{"errors": []any{e}}
		v["httpErrorStatusCode"], v["httpErrorMessage"] = f.status, f.statusText
	}
	return v
}

// failedInsert turns a refusal that Google gives in the operation alone into
// one; nil for the others.
func failedInsert(body instanceBody, zone string, err error) *opError {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		return nil
	}
	switch e.Code {
	case simapi.CodeCapacity:
		return &opError{
			code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", status: http.StatusServiceUnavailable, statusText: "SERVICE UNAVAILABLE",
			message: "The zone 'projects/" + Project + "/zones/" + zone + "' does not have enough resources available to fulfill the request.  '(resource type:compute)'.",
			details: []any{
				object{"help": object{"links": []any{object{"description": "Troubleshooting documentation", "url": "https://cloud.google.com/compute/docs/resource-error"}}}},
				object{"errorInfo": object{"domain": "compute.googleapis.com", "reason": "stockout", "metadatas": map[string]string{
					"attachment": "", "vmType": last(body.MachineType), "zone": zone, "zonesAvailable": "",
				}}},
			},
		}
	case simapi.CodeQuota:
		return &opError{
			code: "QUOTA_EXCEEDED", status: http.StatusForbidden, statusText: "FORBIDDEN",
			message: "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally. (" + e.Message + ")",
			details: []any{object{"quotaInfo": object{"metricName": "compute.googleapis.com/gpus_all_regions", "limitName": "GPUS-ALL-REGIONS-per-project", "limit": 0}}},
		}
	}
	return nil
}

// byName returns an operation. Locked.
func (s *Server) byName(r *http.Request) *operation {
	for _, op := range s.operations {
		if op.name == r.PathValue("operation") && op.zone == r.PathValue("zone") && op.region == r.PathValue("region") {
			return op
		}
	}
	return nil
}

func noOperation(r *http.Request) error {
	return &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "The resource '" + r.PathValue("operation") + "' of type 'operation' was not found"}
}

func (h *handler) getOperation(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "operation"}, func(time.Duration, bool) (any, error) {
		now := h.w.Now()
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.catchUp(h.w)
		if op := h.s.byName(r); op != nil {
			return op.view(now), nil
		}
		return nil, noOperation(r)
	})
}

// waitOperation answers once the operation is done, or with it as it is after two
// minutes.
func (h *handler) waitOperation(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "operation"}, func(time.Duration, bool) (any, error) {
		limit := time.NewTimer(waitLimit)
		defer limit.Stop()
		for over := false; ; {
			changed := h.w.Changed()
			now := h.w.Now()
			h.s.mu.Lock()
			h.s.catchUp(h.w)
			op := h.s.byName(r)
			if op == nil {
				h.s.mu.Unlock()
				return nil, noOperation(r)
			}
			view, status, done := op.view(now), op.status(now), op.done
			h.s.mu.Unlock()
			if status == "DONE" || over {
				return view, nil
			}
			var due <-chan time.Time
			if !done.IsZero() {
				timer := time.NewTimer(max(done.Sub(now), 0))
				defer timer.Stop()
				due = timer.C
			}
			select {
			case <-changed:
			case <-due:
			case <-limit.C:
				over = true
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
	})
}

func (h *handler) zoneOperations(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "operation"}, func(time.Duration, bool) (any, error) {
		all, err := h.allOperations(r)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(i item) bool { return i.scope != "zones/"+r.PathValue("zone") })
		page, next, err := pageOf(r, h.w.Config().PageSize, all)
		if err != nil {
			return nil, err
		}
		out := object{"kind": "compute#operationList", "id": "projects/" + Project + "/zones/" + r.PathValue("zone") + "/operations", "selfLink": link("zones/" + r.PathValue("zone") + "/operations")}
		if len(page) > 0 {
			out["items"] = values(page)
		}
		if next != "" {
			out["nextPageToken"] = next
		}
		return out, nil
	})
}

func (h *handler) aggregatedOperations(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "operation"}, func(time.Duration, bool) (any, error) {
		all, err := h.allOperations(r)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "operations", "compute#operationAggregatedList", all)
	})
}

func (h *handler) allOperations(r *http.Request) ([]item, error) {
	now := h.w.Now()
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.catchUp(h.w)
	var all []item
	for _, op := range h.s.operations {
		scope := "zones/" + op.zone
		if op.region != "" {
			scope = "regions/" + op.region
		}
		all = append(all, item{scope, op.view(now)})
	}
	return filtered(r, all)
}
