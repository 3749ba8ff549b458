package aws

import (
	"cmp"
	"context"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"gpubroker/providers"
)

// named splits an instance type's name: family, generation and attributes
// (EC2 instance types guide, "Naming conventions").
var named = regexp.MustCompile(`^([a-z]+)(\d+)([a-z]*)(-[a-z0-9]+)?\.`)

// arm reports whether a type has an Arm processor: the attribute g is Graviton,
// and gb… is Grace.
func arm(typ string) bool {
	m := named.FindStringSubmatch(typ)
	return m != nil && (strings.Contains(m[3], "g") || strings.HasPrefix(m[4], "-gb"))
}

// withGPU reports whether a type has GPUs: the families g…, gr… and p….
func withGPU(typ string) bool {
	m := named.FindStringSubmatch(typ)
	return m != nil && (m[1] == "g" || m[1] == "gr" || m[1] == "p")
}

// defaultImage is the SSM parameter of the image for a type: AWS's GPU base image
// with NVIDIA's open driver (docs.aws.amazon.com/dlami, "Base GPU AMI"), and
// Canonical's for a machine without a GPU (documentation.ubuntu.com/aws, "Find
// Ubuntu images").
func defaultImage(typ string) string {
	switch {
	case withGPU(typ) && arm(typ):
		return "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
	case withGPU(typ):
		return "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
	case arm(typ):
		return "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id"
	}
	return "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
}

// image finds the image for a type and its root device.
func (a *Adapter) image(ctx context.Context, c *clients, target, set, typ string) (id, root string, err error) {
	id = set
	if id == "" {
		id = defaultImage(typ)
	}
	if !strings.HasPrefix(id, "ami-") {
		out, err := call(ctx, a, "launch", target, c.ssm.GetParameter, &ssm.GetParameterInput{Name: aws.String(strings.TrimPrefix(id, "resolve:ssm:"))})
		if err != nil {
			return "", "", before(err)
		}
		if out.Parameter == nil || !strings.HasPrefix(aws.ToString(out.Parameter.Value), "ami-") {
			return "", "", a.refuse("launch", target, providers.InvalidRequest, providers.ScopeRegion, "the SSM parameter %s holds no image id", id)
		}
		id = aws.ToString(out.Parameter.Value)
	}
	a.mu.Lock()
	root = a.roots[id]
	a.mu.Unlock()
	if root != "" {
		return id, root, nil
	}
	out, err := call(ctx, a, "launch", target, c.ec2.DescribeImages, &ec2.DescribeImagesInput{ImageIds: []string{id}})
	if err != nil {
		return "", "", before(err)
	}
	if len(out.Images) == 0 {
		return "", "", a.refuse("launch", target, providers.InvalidRequest, providers.ScopeRegion, "the image %s is not there for this account in %s", id, c.region)
	}
	// EC2 always says it; it is what Ubuntu's images have.
	root = cmp.Or(aws.ToString(out.Images[0].RootDeviceName), "/dev/sda1")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roots[id] = root
	return id, root, nil
}
