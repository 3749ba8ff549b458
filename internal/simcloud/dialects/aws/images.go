package aws

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
)

// image is one that a region has.
type image struct {
	id, name, arch string
	gib            int
}

// parameters are the public SSM parameters that name images, as of 2026
// (docs.aws.amazon.com/dlami: "Base GPU AMI"; Canonical's).
func parameters() map[string]image {
	return map[string]image{
		"/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id": {name: "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)", arch: "x86_64", gib: 75},
		"/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id":  {name: "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)", arch: "arm64", gib: 75},
		"/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id":         {name: "ubuntu-jammy-22.04-amd64-server", arch: "x86_64", gib: 8},
		"/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id":         {name: "ubuntu-jammy-22.04-arm64-server", arch: "arm64", gib: 8},
		"own": {name: "own", arch: "x86_64", gib: 20},
	}
}

// OwnImage is the id of the account's own image in a region.
func OwnImage(region string) string { return hashID("ami", region+"own") }

func hashID(prefix, of string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(of)) // it has no errors
	return fmt.Sprintf("%s-%017x", prefix, h.Sum(nil))[:len(prefix)+18]
}

// images are those of a region by id.
func (q *request) images() map[string]image {
	out := map[string]image{}
	for parameter, i := range parameters() {
		i.id = hashID("ami", q.region+parameter)
		out[i.id] = i
	}
	return out
}

func (q *request) findImage(id string) (image, error) {
	if !strings.HasPrefix(id, "ami-") {
		return image{}, errorf(http.StatusBadRequest, "InvalidAMIID.Malformed", "Invalid id: %q", id)
	}
	i, ok := q.images()[id]
	if !ok {
		return image{}, errorf(http.StatusBadRequest, "InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
	}
	return i, nil
}

func (q *request) describeImages() {
	q.serve(simcloud.Call{Op: "about"}, func(time.Duration, bool) ([]node, error) {
		var items [][]node
		for _, id := range q.list("ImageId") {
			i, err := q.findImage(id)
			if err != nil {
				return nil, err
			}
			items = append(items, []node{
				tx("imageId", i.id), tx("imageState", "available"), tx("imageOwnerId", "898082745236"), tx("isPublic", i.name != "own"),
				tx("architecture", i.arch), tx("imageType", "machine"), tx("name", i.name), tx("rootDeviceType", "ebs"), tx("rootDeviceName", "/dev/sda1"),
				set("blockDeviceMapping", []node{
					tx("deviceName", "/dev/sda1"),
					el("ebs", tx("deleteOnTermination", true), tx("snapshotId", hashID("snap", i.id)), tx("volumeSize", i.gib), tx("volumeType", "gp2")),
				}),
				tx("virtualizationType", "hvm"), tx("hypervisor", "xen"),
			})
		}
		return []node{set("imagesSet", items...)}, nil
	})
}

func (q *request) getParameter() {
	var in struct{ Name string }
	q.serveJSON(&in, simcloud.Call{Op: "about"}, func(time.Duration) (any, error) {
		if _, ok := parameters()[in.Name]; !ok || in.Name == "own" {
			return nil, errorf(http.StatusBadRequest, "ParameterNotFound", "Parameter %s not found.", in.Name)
		}
		return map[string]any{"Parameter": map[string]any{
			"Name": in.Name, "Type": "String", "Value": hashID("ami", q.region+in.Name), "Version": 1, "DataType": "aws:ec2:image",
			"ARN": "arn:aws:ssm:" + q.region + "::parameter" + in.Name, "LastModifiedDate": json.Number("1770000000.5"),
		}}, nil
	})
}

// SubnetID is the id of a zone's default subnet.
func SubnetID(zone string) string { return hashID("subnet", zone) }

// vpcID is the id of a region's default network.
func vpcID(region string) string { return hashID("vpc", region) }

func (q *request) describeSubnets() {
	q.serve(simcloud.Call{Op: "about"}, func(time.Duration, bool) ([]node, error) {
		wanted := map[string]bool{}
		for _, id := range q.list("SubnetId") {
			wanted[id] = true
		}
		var items [][]node
		for _, z := range zones(q.w.Offers(q.region, 0)) {
			id := SubnetID(z)
			ok, err := pass(q.filters(), func(name string) ([]string, bool) {
				switch name {
				case "availability-zone", "availabilityZone":
					return []string{z}, true
				case "subnet-id":
					return []string{id}, true
				case "default-for-az", "defaultForAz":
					return []string{"true"}, true
				case "vpc-id":
					return []string{vpcID(q.region)}, true
				}
				return tagged(map[string]string{"Name": "default-" + z, "gpubroker": "yes"}, name)
			})
			if err != nil {
				return nil, err
			}
			if len(wanted) > 0 && !wanted[id] {
				continue
			}
			delete(wanted, id)
			if ok {
				items = append(items, []node{
					tx("subnetId", id), tx("state", "available"), tx("vpcId", vpcID(q.region)), tx("cidrBlock", "172.31.0.0/20"),
					tx("availableIpAddressCount", 4091), tx("availabilityZone", z), tx("defaultForAz", true), tx("mapPublicIpOnLaunch", true),
				})
			}
		}
		for id := range wanted {
			return nil, errorf(http.StatusBadRequest, "InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
		}
		return []node{set("subnetSet", items...)}, nil
	})
}
