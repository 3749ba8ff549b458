package scheduler

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// Result is what to do, and why. Its actions are in the order to be done.
type Result struct {
	Stops     []Stop
	Assigns   []Assign
	Launches  []Launch
	Releases  []Release
	Decisions []Decision // one for each group, in the order in which they were served
	// Wake is the next moment at which the same snapshot could give another
	// answer; zero means that only new facts can.
	Wake time.Time
	// Wanted are the tables that would have been asked: to be built and put into the
	// library of the next snapshot.
	Wanted []policy.Sketch
}

// Assign puts Count tasks of a group on a machine that has room.
type Assign struct {
	Group   string
	Machine string
	Count   int
	// Slots, when not 0, is how an empty machine is cut anew.
	Slots   int
	SlotKey string
	// Gang numbers the gangs of a result from 1: what bears the same number is one
	// task's, and is done as a whole or not at all. 0 is no gang.
	Gang int
}

// Launch rents one machine for Tasks tasks of a group, and for those of More.
type Launch struct {
	Group     string
	Market    providers.Market
	Shape     providers.Shape
	Tasks     int
	Slots     int
	SlotKey   string
	Price     money.Rate
	Bound     money.Rate
	Reference money.Rate // on demand; 0 unknown
	Boot      time.Time  // the agent must have called in by then
	Lease     time.Time
	// More are tasks of later groups that share the machine. Whoever leaves them
	// out loses nothing: the next pass finds its free slots.
	More []Share
	Gang int // see [Assign]
	// Takes is a running attempt of the group: once all machines that take it are
	// accepted it stops, and its task goes on on them. Tasks is 0, and the group is the
	// attempt's.
	Takes string
	Why   reason.Reason // of a move
}

// Share is Tasks tasks of a group.
type Share struct {
	Group string
	Tasks int
}

// Stop asks an attempt to end.
type Stop struct {
	Attempt string
	Outcome string // stopped
	Why     reason.Reason
}

// Release lets an empty machine go.
type Release struct {
	Machine string
	Why     reason.Reason
}

// Decision says what was decided for a group and from what.
type Decision struct {
	Group    string        `json:"group"`
	Job      string        `json:"job"`
	Waiting  int           `json:"waiting"`
	Placed   int           `json:"placed"`         // tasks placed by this pass
	Launched int           `json:"launched"`       // machines asked for
	Why      reason.Reason `json:"why"`            // of the choice, or of the wait
	Wait     bool          `json:"wait"`           // some tasks are left waiting
	Again    time.Time     `json:"again,omitzero"` // the next look at the latest; zero: when something changes
	Best     []Option      `json:"best,omitzero"`  // the chosen first when one was, then the next best, at most five
	// Considered is the number of offers when the market was asked, 0 when the
	// group was served or held without it. Usable and Reasons sum to it.
	Considered int     `json:"considered"`
	Usable     int     `json:"usable"`
	Reasons    []Count `json:"reasons,omitzero"`
}

// Count is how many offers a reason ruled out.
type Count struct {
	Code   reason.Code   `json:"code"`
	Offers int           `json:"offers"`
	Sample reason.Reason `json:"sample"` // with the numbers of one of them
}

// Option is one way to do the work, with its cost to finish one task in parts.
type Option struct {
	Market providers.Market `json:"market"`
	Shape  providers.Shape  `json:"shape"`
	Price  money.Rate       `json:"price"`          // of the whole machine
	Bound  money.Rate       `json:"bound"`          // that its reservations would assume
	Nodes  int              `json:"nodes,omitzero"` // machines that a task needs at once; 0 is one
	Slots  int              `json:"slots"`
	Rounds int              `json:"rounds"` // tasks that each slot runs one after another
	Tasks  int              `json:"tasks"`  // that the cost is shared by, on one machine
	// Machines is how many the waiting tasks take: with a deadline, what is needed
	// to be done by then.
	Machines int           `json:"machines"`
	Delay    time.Duration `json:"delay"`            // from launch to useful work, in nanoseconds
	Time     time.Duration `json:"time"`             // for one task by itself, in nanoseconds
	Done     time.Duration `json:"done"`             // from launch to the end of the last of its tasks, undisturbed, in nanoseconds
	Rate     Source        `json:"rate"`             // measured, scaled, given, modelled, assumed: where Time is from
	RateOn   string        `json:"rate_on,omitzero"` // the GPU that was measured, where it is another or on other machines
	Low      time.Duration `json:"time_low"`         // eight tasks of ten are expected to take between Low
	High     time.Duration `json:"time_high"`        // and High, in nanoseconds
	Late     bool          `json:"late,omitzero"`    // not done by the deadline
	Cooled   time.Time     `json:"cooled,omitzero"`  // left alone until then
	// Committed: paid for already, so that the cost is 0. Price and Bound are what is
	// reserved all the same.
	Committed bool  `json:"committed,omitzero"`
	Cost      Parts `json:"cost"`
	// RTT is the way to the farthest of the users and back, modelled, where the work
	// has users; only of an explanation.
	RTT time.Duration `json:"rtt,omitzero"`
	// Notes say what the estimate takes for granted, and what it leaves out.
	Notes []reason.Reason `json:"notes,omitzero"`
}

// Parts are what one task costs: its share of its machine, and what it moves. All
// but Waiting sum to Total.
type Parts struct {
	Total    money.Amount `json:"total"`
	Boot     money.Amount `json:"boot"`
	Staging  money.Amount `json:"staging"`  // the machine's time while inputs are fetched and outputs sent
	Work     money.Amount `json:"work"`     // the task by itself
	Saves    money.Amount `json:"saves"`    // the machine's time while checkpoints are saved
	Redo     money.Amount `json:"redo"`     // expected, for spot
	Egress   money.Amount `json:"egress"`   // bytes between regions and clouds
	Rounding money.Amount `json:"rounding"` // by the billing unit and minimum
	Idle     money.Amount `json:"idle"`     // until the machine is let go
	// Waiting is what the time until the job is done is worth to it. It decides
	// with Total between options, and is not spent.
	Waiting money.Amount `json:"waiting,omitzero"`
}
