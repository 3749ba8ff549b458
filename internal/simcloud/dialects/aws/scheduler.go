package aws

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// schedule is one of EventBridge Scheduler, as its API has it.
type schedule struct {
	Name                       string
	GroupName                  string
	ScheduleExpression         string
	ScheduleExpressionTimezone string
	FlexibleTimeWindow         map[string]any
	Target                     struct {
		Arn, RoleArn, Input string
		RetryPolicy         map[string]int `json:",omitempty"`
	}
	ActionAfterCompletion string
	Description           string
	State                 string
	ClientToken           string `json:",omitempty"`

	at  time.Time
	ids []string // of the world, that it ends
}

// terminateTarget ends instances.
const terminateTarget = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"

// parse checks a schedule. Only what ends machines once is there.
func (s *schedule) parse() error {
	at, ok := strings.CutPrefix(s.ScheduleExpression, "at(")
	at, end := strings.CutSuffix(at, ")")
	when, err := time.Parse("2006-01-02T15:04:05", at)
	if !ok || !end || err != nil {
		return errorf(http.StatusBadRequest, "ValidationException", "Invalid Schedule Expression %s.", s.ScheduleExpression)
	}
	var input struct{ InstanceIds []string }
	switch {
	case s.FlexibleTimeWindow["Mode"] != "OFF":
		return errorf(http.StatusBadRequest, "ValidationException", "FlexibleTimeWindow is required.")
	case s.Target.Arn != terminateTarget:
		return errorf(http.StatusBadRequest, "ValidationException", "Provided Arn is not in correct format.")
	case !strings.HasPrefix(s.Target.RoleArn, "arn:aws:iam::"+account+":role/"):
		return errorf(http.StatusBadRequest, "ValidationException", "The execution role you provide must allow AWS EventBridge Scheduler to assume the role.")
	case json.Unmarshal([]byte(s.Target.Input), &input) != nil || len(input.InstanceIds) == 0:
		return errorf(http.StatusBadRequest, "ValidationException", "Invalid RequestJson provided. Reason: the parameter InstanceIds is missing.")
	}
	s.at, s.ids = when, nil
	for _, id := range input.InstanceIds {
		s.ids = append(s.ids, WorldID(id))
	}
	return nil
}

func (q *request) scheduleKey() name {
	id := strings.TrimPrefix(q.r.URL.Path, "/schedules/")
	if plain, err := url.PathUnescape(id); err == nil {
		id = plain
	}
	return name{q.region, id}
}

// schedulesNow drops those that have run and were to be deleted then. mu is held.
func (q *request) schedulesNow() map[name]*schedule {
	now := q.w.Now()
	for key, s := range q.schedules {
		if !s.at.After(now) && s.ActionAfterCompletion == "DELETE" {
			delete(q.schedules, key)
		}
	}
	return q.schedules
}

func noSchedule(key name) error {
	return errorf(http.StatusNotFound, "ResourceNotFoundException", "Schedule %s does not exist.", key.name)
}

// far is an end that never comes.
const far = 100 * 365 * 24 * time.Hour

// arm has the world end the schedule's machines at its time. Machines that are
// not there, or going, are no error: the call that the schedule makes would fail.
func (q *request) arm(s *schedule, at time.Time) error {
	for _, id := range s.ids {
		_, err := q.w.MoveEnd(id, at)
		if e, ok := errors.AsType[*simapi.Error](err); ok && e.Code == simapi.CodeNotFound {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scheduled says which machine a call is about, for faults.
func (q *request) scheduled(in *schedule) simcloud.Call {
	c := simcloud.Call{Op: "move_end"}
	if len(in.ids) > 0 {
		c.Machine = in.ids[0]
	}
	return c
}

func (q *request) createSchedule() { q.putSchedule(true) }
func (q *request) updateSchedule() { q.putSchedule(false) }

func (q *request) putSchedule(create bool) {
	in, key := &schedule{State: "ENABLED", GroupName: "default", ActionAfterCompletion: "NONE"}, q.scheduleKey()
	decoded := json.Unmarshal(q.body, in)
	parsed := in.parse()
	q.serveJSON(&struct{}{}, q.scheduled(in), func(time.Duration) (any, error) {
		in.Name = key.name
		if err := errors.Join(decoded, parsed); err != nil {
			return nil, parsed
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		old, there := q.schedulesNow()[key]
		switch {
		case create && there && (in.ClientToken == "" || old.ClientToken != in.ClientToken):
			return nil, errorf(http.StatusConflict, "ConflictException", "Schedule %s already exists.", key.name)
		case !create && !there:
			return nil, noSchedule(key)
		}
		if there && !slices.Equal(old.ids, in.ids) {
			if err := q.arm(old, q.w.Now().Add(far)); err != nil {
				return nil, err
			}
		}
		q.schedules[key] = in
		if err := q.arm(in, in.at); err != nil {
			return nil, err
		}
		return map[string]string{"ScheduleArn": "arn:aws:scheduler:" + q.region + ":" + account + ":schedule/" + in.GroupName + "/" + key.name}, nil
	})
}

func (q *request) getSchedule() {
	key := q.scheduleKey()
	q.serveJSON(&struct{}{}, simcloud.Call{Op: "move_end"}, func(time.Duration) (any, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		s, ok := q.schedulesNow()[key]
		if !ok {
			return nil, noSchedule(key)
		}
		return s, nil
	})
}

func (q *request) deleteSchedule() {
	key := q.scheduleKey()
	q.serveJSON(&struct{}{}, simcloud.Call{Op: "unschedule"}, func(time.Duration) (any, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		s, ok := q.schedulesNow()[key]
		if !ok {
			return nil, noSchedule(key)
		}
		delete(q.schedules, key)
		if err := q.arm(s, q.w.Now().Add(far)); err != nil {
			return nil, err
		}
		return map[string]string{}, nil
	})
}
