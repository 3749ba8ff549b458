package aws

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// userDataLimit is the longest user data in bytes before base64 (EC2 user guide,
// "User data").
const userDataLimit = 16 << 10

// extra is what EC2 knows of an instance beside the world.
type extra struct {
	index       int // its place among those of one call
	reservation string
	token       string
	image       image
	group       string
	private     bool // without a public address
	raw         string
	tags        map[string]string
}

// run is a call of RunInstances that has made something.
type run struct {
	params string   // see request.params
	ids    []string // of the world
}

// order is a call of RunInstances, read.
type order struct {
	place       simapi.Place
	low, high   int
	image       image
	bound       rate
	script, raw string
	tags        map[string]string
	group       string
	private     bool
	token       string
}

func (q *request) runInstances() {
	o, err := q.order()
	c := simcloud.Call{Op: "launch", Place: o.place}
	q.serve(c, func(_ time.Duration, dud bool) ([]node, error) {
		switch {
		case err != nil:
			return nil, err
		case q.form.Get("DryRun") == "true":
			return nil, errorf(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
		}
		ids, err := q.run(o, dud)
		if err != nil {
			return nil, err
		}
		return q.reservation(ids)
	})
}

// order reads and checks the parameters.
func (q *request) order() (order, error) {
	invalid := func(format string, args ...any) error {
		return errorf(http.StatusBadRequest, "InvalidParameterValue", format, args...)
	}
	o := order{token: q.form.Get("ClientToken"), group: q.form.Get("Placement.GroupName"), tags: map[string]string{}}
	o.place = simapi.Place{Region: q.region, Zone: q.form.Get("Placement.AvailabilityZone"), Type: q.form.Get("InstanceType"), Kind: providers.OnDemand}
	if q.form.Get("InstanceMarketOptions.MarketType") == "spot" {
		o.place.Kind = providers.Spot
	}
	var errLow, errHigh error
	o.low, errLow = strconv.Atoi(q.form.Get("MinCount"))
	o.high, errHigh = strconv.Atoi(q.form.Get("MaxCount"))
	if errLow != nil || errHigh != nil || o.low < 1 || o.high < o.low {
		return o, errorf(http.StatusBadRequest, "MissingParameter", "MinCount and MaxCount must be positive, and MaxCount not below MinCount.")
	}
	if len(o.token) > 64 {
		return o, invalid("ClientToken is longer than 64 characters.")
	}
	all := q.w.Offers(q.region, 0)
	known := zones(all)
	if subnet := cmp.Or(q.form.Get("SubnetId"), q.form.Get("NetworkInterface.1.SubnetId")); subnet != "" {
		at := slices.IndexFunc(known, func(z string) bool { return SubnetID(z) == subnet })
		if at < 0 {
			return o, errorf(http.StatusBadRequest, "InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", subnet)
		}
		if o.place.Zone != "" && o.place.Zone != known[at] {
			return o, invalid("The subnet %s is not in the zone %s.", subnet, o.place.Zone)
		}
		o.place.Zone = known[at]
	}
	if len(q.list("NetworkInterface.1.SecurityGroupId")) > 0 && len(q.list("SecurityGroupId")) > 0 {
		return o, errorf(http.StatusBadRequest, "InvalidParameterCombination", "Network interfaces and an instance-level security groups may not be specified on the same request")
	}
	if q.form.Get("NetworkInterface.2.DeviceIndex") != "" && q.form.Get("NetworkInterface.1.AssociatePublicIpAddress") == "true" {
		return o, errorf(http.StatusBadRequest, "InvalidParameterCombination", "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
	}
	o.private = q.form.Get("NetworkInterface.1.AssociatePublicIpAddress") == "false"
	if o.place.Zone == "" {
		o.place.Zone = q.anyZone(all, o.place)
	}
	if !slices.Contains(known, o.place.Zone) {
		return o, invalid("Invalid availability zone: [%s]", o.place.Zone)
	}
	if !slices.ContainsFunc(all, func(x simapi.Offer) bool { return x.Type == o.place.Type }) {
		return o, invalid("Invalid value '%s' for InstanceType.", o.place.Type)
	}
	if err := q.orderImage(&o); err != nil {
		return o, err
	}
	if s := q.form.Get("InstanceMarketOptions.SpotOptions.MaxPrice"); s != "" && o.place.Kind == providers.Spot {
		bound, err := money.RateOf(s)
		if err != nil || bound <= rate(money.Unit/1000) {
			return o, invalid("Invalid value '%s' for MaxPrice: it must be more than 0.001.", s)
		}
		o.bound = bound + diskPrice + ipv4Price
	}
	if o.group != "" {
		q.mu.Lock()
		_, ok := q.groups[name{q.region, o.group}]
		q.mu.Unlock()
		if !ok {
			return o, errorf(http.StatusBadRequest, "InvalidPlacementGroup.Unknown", "The Placement Group '%s' is unknown.", o.group)
		}
	}
	q.orderTags(&o)
	return o, q.orderScript(&o)
}

func (q *request) anyZone(all []simapi.Offer, p simapi.Place) string {
	for _, o := range all {
		if o.Type == p.Type && o.Kind == p.Kind && o.Available != providers.Full {
			return o.Zone
		}
	}
	return cmp.Or(slices.Concat(zones(all), []string{""})[0])
}

func (q *request) orderImage(o *order) error {
	id := q.form.Get("ImageId")
	if parameter, ok := strings.CutPrefix(id, "resolve:ssm:"); ok {
		id = hashID("ami", q.region+parameter)
	}
	i, err := q.findImage(id)
	if err != nil {
		return err
	}
	o.image = i
	for n := 1; q.form.Get(fmt.Sprintf("BlockDeviceMapping.%d.DeviceName", n)) != ""; n++ {
		size, err := strconv.Atoi(cmp.Or(q.form.Get(fmt.Sprintf("BlockDeviceMapping.%d.Ebs.VolumeSize", n)), "1"))
		if device := q.form.Get(fmt.Sprintf("BlockDeviceMapping.%d.DeviceName", n)); err != nil || device == "/dev/sda1" && size < i.gib {
			return errorf(http.StatusBadRequest, "InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot, expect size >= %dGB", size, i.gib)
		}
	}
	return nil
}

func (q *request) orderTags(o *order) {
	for n := 1; ; n++ {
		key := fmt.Sprintf("TagSpecification.%d", n)
		if q.form.Get(key+".ResourceType") == "" {
			return
		}
		for m := 1; q.form.Get(fmt.Sprintf("%s.Tag.%d.Key", key, m)) != ""; m++ {
			if q.form.Get(key+".ResourceType") == "instance" {
				o.tags[q.form.Get(fmt.Sprintf("%s.Tag.%d.Key", key, m))] = q.form.Get(fmt.Sprintf("%s.Tag.%d.Value", key, m))
			}
		}
	}
}

// orderScript decodes the user data as cloud-init would: gzip is unpacked.
func (q *request) orderScript(o *order) error {
	if len(o.tags) > 50 {
		return errorf(http.StatusBadRequest, "TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")
	}
	raw, err := base64.StdEncoding.DecodeString(q.form.Get("UserData"))
	switch {
	case err != nil:
		return errorf(http.StatusBadRequest, "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	case len(raw) > userDataLimit:
		return errorf(http.StatusBadRequest, "InvalidParameterValue", "User data is limited to %d bytes", userDataLimit)
	}
	o.raw, o.script = string(raw), string(raw)
	if zipped, err := gzip.NewReader(bytes.NewReader(raw)); err == nil {
		plain, err := io.ReadAll(io.LimitReader(zipped, 1<<20))
		if err != nil {
			return errorf(http.StatusBadRequest, "InvalidUserData.Malformed", "%v", err)
		}
		o.script = string(plain)
	}
	return nil
}

// params is the same for the same request: all parameters but where it goes, for
// client tokens count per zone.
func (q *request) params() string {
	var b strings.Builder
	for _, k := range slices.Sorted(keysOf(flat(q.form))) {
		if !slices.Contains([]string{"Placement.AvailabilityZone", "SubnetId", "NetworkInterface.1.SubnetId", "ClientToken", "DryRun"}, k) {
			fmt.Fprintf(&b, "%q=%q\n", k, q.form.Get(k))
		}
	}
	return b.String()
}

func flat(form map[string][]string) map[string]string {
	out := map[string]string{}
	for k, v := range form {
		out[k] = strings.Join(v, "\n")
	}
	return out
}

// run makes the machines of an order, or finds those that its client token has
// made (docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html,
// "RunInstances idempotency": a request that names a zone is idempotent in it).
func (q *request) run(o order, dud bool) ([]string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	token := strings.Join([]string{q.region, o.place.Zone, o.token}, "|")
	params := q.params()
	if before, ok := q.tokens[token]; ok && o.token != "" {
		if before.params != params {
			return nil, errorf(http.StatusBadRequest, "IdempotentParameterMismatch", "The client token '%s' was used with other parameters.", o.token)
		}
		return before.ids, nil
	}
	q.runs++
	reservation := fmt.Sprintf("r-%017x", q.runs)
	own := cmp.Or(o.token, reservation)
	if _, err := q.w.Machine("request:" + own); err == nil {
		own += "@" + o.place.Zone
	}
	var ids []string
	for n := range o.high {
		request := own
		if o.high > 1 {
			request += "/" + strconv.Itoa(n)
		}
		m, err := q.w.LaunchAs(simapi.Launch{Place: o.place, Request: request, PriceMax: o.bound, UserData: o.script, Tags: o.tags}, dud)
		if err != nil {
			if n >= o.low {
				break
			}
			for _, id := range ids {
				err = errors.Join(err, q.w.Terminate(id))
			}
			return nil, err
		}
		ids = append(ids, m.ID)
		q.extras[m.ID] = extra{
			index: n, reservation: reservation, token: o.token, image: o.image, group: o.group, private: o.private, raw: o.raw, tags: o.tags,
		}
	}
	if o.token != "" {
		q.tokens[token] = run{params, ids}
	}
	return ids, nil
}

// reservation shows what a call of RunInstances has made, as it is now.
func (q *request) reservation(ids []string) ([]node, error) {
	var items [][]node
	id := ""
	for _, world := range ids {
		m, err := q.w.Machine(world)
		if err != nil {
			return nil, err
		}
		x := q.extra(world)
		id = x.reservation
		items = append(items, q.instance(m, x))
	}
	return []node{tx("reservationId", id), tx("ownerId", account), el("groupSet"), set("instancesSet", items...)}, nil
}

func (c *cloud) extra(world string) extra {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.extras[world]
	x.reservation = cmp.Or(x.reservation, "r-0000000000000000f")
	return x
}
