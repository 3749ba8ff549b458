package aws

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
)

// account is the number of the one account.
const account = "123456789012"

// Options change what the account may do.
type Options struct {
	// Deny are actions that the caller's policy does not allow: "ec2:RunInstances".
	Deny []string
}

// Dialect is AWS for one world. A dialect holds what the world does not know of
// (schedules, placement groups, client tokens), so each world needs its own.
func Dialect() *simcloud.Dialect { return With(Options{}) }

// With is [Dialect] with options.
func With(o Options) *simcloud.Dialect {
	c := &cloud{
		opts: o, tokens: map[string]run{}, extras: map[string]extra{}, groups: map[name]group{},
		schedules: map[name]*schedule{}, queues: map[name]*queue{},
	}
	return &simcloud.Dialect{Name: "aws", API: c.api, Metadata: c.metadata, Left: c.left}
}

// left names the schedules whose time has not come.
func (c *cloud) left(w *simcloud.World) []string {
	now := w.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for key, s := range c.schedules {
		if s.at.After(now) {
			out = append(out, "schedule "+key.region+"/"+key.name)
		}
	}
	slices.Sort(out)
	return out
}

// cloud is what AWS knows beside the world. mu is never held by what the world
// calls while it is locked itself.
type cloud struct {
	opts Options

	mu        sync.Mutex
	runs      int            // calls of RunInstances that made something
	tokens    map[string]run // by region, zone and client token
	extras    map[string]extra
	groups    map[name]group
	schedules map[name]*schedule
	queues    map[name]*queue
}

// name is a thing of a region.
type name struct{ region, name string }

// request is one call.
type request struct {
	*cloud
	w       *simcloud.World
	rw      http.ResponseWriter
	r       *http.Request
	service string // ec2, sts, sqs, pricing, ssm, servicequotas, scheduler
	region  string
	action  string
	form    url.Values // the Query protocol's
	body    []byte     // the JSON protocols'
	query   bool       // answers are XML
}

// maxBody is the longest request in bytes.
const maxBody = 1 << 20

func (c *cloud) api(w *simcloud.World) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		q := &request{cloud: c, w: w, rw: rw, r: r}
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
		if err != nil {
			q.fail(errorf(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "%v", err))
			return
		}
		q.body = body
		if err := q.read(); err != nil {
			q.fail(err)
			return
		}
		if slices.Contains(c.opts.Deny, q.service+":"+q.action) {
			q.fail(q.denied())
			return
		}
		if q.form.Get("DryRun") == "true" && !slices.Contains([]string{"RunInstances", "TerminateInstances", "DeletePlacementGroup"}, q.action) {
			q.fail(errorf(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."))
			return
		}
		handle := actions()[q.service+":"+q.action]
		if handle == nil {
			q.fail(errorf(http.StatusBadRequest, "InvalidAction", "The action %s is not valid for this web service.", q.action))
			return
		}
		handle(q)
	})
}

// actions are the calls that are answered.
func actions() map[string]func(*request) {
	return map[string]func(*request){
		"ec2:DescribeInstanceTypes":         (*request).describeInstanceTypes,
		"ec2:DescribeInstanceTypeOfferings": (*request).describeInstanceTypeOfferings,
		"ec2:DescribeSpotPriceHistory":      (*request).describeSpotPriceHistory,
		"ec2:DescribeAvailabilityZones":     (*request).describeAvailabilityZones,
		"ec2:GetSpotPlacementScores":        (*request).getSpotPlacementScores,
		"ec2:RunInstances":                  (*request).runInstances,
		"ec2:DescribeInstances":             (*request).describeInstances,
		"ec2:TerminateInstances":            (*request).terminateInstances,
		"ec2:CreateTags":                    (*request).createTags,
		"ec2:GetConsoleOutput":              (*request).getConsoleOutput,
		"ec2:DescribeImages":                (*request).describeImages,
		"ec2:DescribeSubnets":               (*request).describeSubnets,
		"ec2:CreatePlacementGroup":          (*request).createPlacementGroup,
		"ec2:DescribePlacementGroups":       (*request).describePlacementGroups,
		"ec2:DeletePlacementGroup":          (*request).deletePlacementGroup,
		"sts:GetCallerIdentity":             (*request).getCallerIdentity,
		"pricing:GetProducts":               (*request).getProducts,
		"ssm:GetParameter":                  (*request).getParameter,
		"servicequotas:ListServiceQuotas":   (*request).listServiceQuotas,
		"sqs:GetQueueUrl":                   (*request).getQueueURL,
		"sqs:GetQueueAttributes":            (*request).getQueueAttributes,
		"sqs:ReceiveMessage":                (*request).receiveMessage,
		"sqs:DeleteMessage":                 (*request).deleteMessage,
		"sqs:DeleteMessageBatch":            (*request).deleteMessageBatch,
		"scheduler:CreateSchedule":          (*request).createSchedule,
		"scheduler:UpdateSchedule":          (*request).updateSchedule,
		"scheduler:GetSchedule":             (*request).getSchedule,
		"scheduler:DeleteSchedule":          (*request).deleteSchedule,
	}
}

// targets are the services of the JSON protocols by the prefix of X-Amz-Target.
func targets() map[string]string {
	return map[string]string{
		"AWSPriceListService": "pricing", "AmazonSQS": "sqs", "AmazonSSM": "ssm", "ServiceQuotasV20190624": "servicequotas",
	}
}

// scope is the part of a signature that names key, region and service.
var scope = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/,]+)/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, ?SignedHeaders=[^,]+, ?Signature=[0-9a-f]{64}$`)

// read finds out which call it is and who makes it.
func (q *request) read() error {
	signed := scope.FindStringSubmatch(q.r.Header.Get("Authorization"))
	target := q.r.Header.Get("X-Amz-Target")
	switch {
	case target != "":
		prefix, action, _ := strings.Cut(target, ".")
		q.service, q.action = targets()[prefix], action
	case strings.HasPrefix(q.r.URL.Path, "/schedules/"):
		q.service = "scheduler"
		q.action = map[string]string{
			http.MethodPost: "CreateSchedule", http.MethodPut: "UpdateSchedule", http.MethodGet: "GetSchedule", http.MethodDelete: "DeleteSchedule",
		}[q.r.Method]
	default:
		q.query, q.service = true, "ec2"
		form, err := url.ParseQuery(string(q.body))
		if err != nil {
			return errorf(http.StatusBadRequest, "MalformedQueryString", "%v", err)
		}
		for k, v := range q.r.URL.Query() {
			form[k] = append(form[k], v...)
		}
		q.form, q.action = form, form.Get("Action")
		if signed != nil {
			q.service = signed[3]
		}
	}
	if signed == nil {
		return q.unsigned("the request must contain a signature of version 4")
	}
	q.region = signed[2]
	if key := q.w.Config().Tokens.API; key != "" && signed[1] != key {
		return q.unsigned("the access key id does not exist in our records")
	}
	if q.r.Header.Get("X-Amz-Security-Token") == "expired" {
		return q.expired()
	}
	return nil
}

// serve makes a call of EC2 or another of the Query protocol.
func (q *request) serve(c simcloud.Call, effect func(age time.Duration, dud bool) ([]node, error)) {
	q.w.Answer(q.rw, q.r, c, q.words(c), func(age time.Duration, dud bool) (simcloud.Reply, error) {
		nodes, err := effect(age, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		return simcloud.Reply{Type: "text/xml;charset=UTF-8", Body: q.document(nodes)}, nil
	})
}

// words writes a failure of a call in the service's words.
func (q *request) words(c simcloud.Call) simcloud.Words {
	return func(_ http.ResponseWriter, err error) { q.write(q.translate(err, c)) }
}

// page cuts a list as NextToken and MaxResults say. A page is never longer than
// the world's pages.
func (q *request) page(n int, token string, most, low, high int) (from, to int, next string, err error) {
	if most != 0 && (most < low || most > high) {
		return 0, 0, "", errorf(http.StatusBadRequest, "InvalidParameterValue", "Value ( %d ) for parameter maxResults is invalid. Expecting a value between %d and %d.", most, low, high)
	}
	if token != "" {
		at, ok := strings.CutPrefix(token, "page-")
		if from, err = strconv.Atoi(at); !ok || err != nil || from < 0 || from > n {
			return 0, 0, "", errorf(http.StatusBadRequest, "InvalidNextToken", "The pagination token is invalid.")
		}
	}
	size := min(q.w.Config().PageSize, high)
	if most > 0 {
		size = min(size, most)
	}
	to = min(from+size, n)
	if to < n {
		next = "page-" + strconv.Itoa(to)
	}
	return from, to, next, nil
}

// formPage is page for the Query protocol.
func (q *request) formPage(n, low, high int) (from, to int, next string, err error) {
	most := 0
	if s := q.form.Get("MaxResults"); s != "" {
		if most, err = strconv.Atoi(s); err != nil {
			return 0, 0, "", errorf(http.StatusBadRequest, "InvalidParameterValue", "MaxResults %q is no number.", s)
		}
	}
	return q.page(n, q.form.Get("NextToken"), most, low, high)
}

// list reads NAME.1, NAME.2, … of a form.
func (q *request) list(name string) []string {
	var out []string
	for n := 1; ; n++ {
		v, ok := q.form[fmt.Sprintf("%s.%d", name, n)]
		if !ok {
			return out
		}
		out = append(out, v[0])
	}
}

// InstanceID is the EC2 instance id of a machine of the world.
func InstanceID(world string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(world, "sim-"))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("i-0%016x", n)
}

// WorldID is the world's id of an EC2 instance.
func WorldID(instance string) string {
	n, err := strconv.ParseInt(strings.TrimPrefix(instance, "i-0"), 16, 64)
	if err != nil || len(instance) != len("i-0")+16 {
		return ""
	}
	return fmt.Sprintf("sim-%06d", n)
}
