// Package aws is the adapter for Amazon EC2, through aws-sdk-go-v2: EC2 API
// version 2016-11-15, Price List Query API, SQS, SSM, Service Quotas and
// EventBridge Scheduler. It implements [providers.Provider] and the abilities
// Quotas, Preflight, Scores, Console and BulkLauncher, EndMover when end_role is
// set, and Interrupter when queue is set. AWS has no bill of a single machine
// before the usage report of the next day, so there is no Biller.
//
// One account has several regions. A market is a zone's instance type, on spot or
// on demand; the price is the machine's with its gp3 disk and its public address.
// Instance types with GPUs are offered, and those without that the setting types names.
//
// # Set-up
//
//  1. Make a user or role with the policy below and give its credentials: by the
//     SDK's standard chain (environment, ~/.aws, profile, instance role), by
//     role_arn, or as access_key and secret_key.
//  2. Raise the vCPU quotas of the G and P families, spot and on demand, in each
//     region: new accounts have 0. Spot needs its service-linked role once:
//     aws iam create-service-linked-role --aws-service-name spot.amazonaws.com
//  3. Keep the default VPC, or name subnets in network.subnet. Machines open
//     connections only; their security group needs no inbound rule. For gangs with
//     EFA it must allow all traffic from and to itself.
//  4. For an end that AWS keeps, make the role of end_role.
//  5. For warnings within a second, whether or not the machine's agent lives,
//     make in each region a queue and a rule that sends it EC2's events:
//
// The rule and the queue's policy:
//
//	aws sqs create-queue --queue-name gpubroker
//	aws events put-rule --name gpubroker --event-pattern '{"source":["aws.ec2"],
//	  "detail-type":["EC2 Spot Instance Interruption Warning","EC2 Instance Rebalance Recommendation"]}'
//	aws events put-targets --rule gpubroker --targets Id=1,Arn=arn:aws:sqs:REGION:ACCOUNT:gpubroker
//
//	{"Statement": [{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"},
//	  "Action": "sqs:SendMessage", "Resource": "arn:aws:sqs:*:ACCOUNT:gpubroker"}]}
//
// A configuration:
//
//	providers:
//	  - name: aws
//	    type: aws
//	    settings:
//	      regions: [us-east-1, eu-central-1]
//	      access_key: env:AWS_KEY_ID        # these two only without the SDK's standard chain
//	      secret_key: env:AWS_SECRET_KEY
//	      end_role: arn:aws:iam::123456789012:role/gpubroker-end   # step 4
//	      queue: gpubroker                  # step 5
//	      disk: 200GiB
//
// # Permissions
//
// The shortest policy with which everything works. Without end_role the statement
// "End", and without queue "Events", can go.
//
//	{"Version": "2012-10-17", "Statement": [
//	  {"Sid": "Look", "Effect": "Allow", "Resource": "*", "Action": [
//	    "ec2:DescribeInstanceTypes", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeSpotPriceHistory",
//	    "ec2:DescribeInstances", "ec2:DescribeImages", "ec2:DescribeSubnets", "ec2:GetSpotPlacementScores",
//	    "pricing:GetProducts", "servicequotas:ListServiceQuotas"]},
//	  {"Sid": "Image", "Effect": "Allow", "Action": "ssm:GetParameter", "Resource": "arn:aws:ssm:*::parameter/aws/service/*"},
//	  {"Sid": "Rent", "Effect": "Allow", "Resource": "*", "Action": ["ec2:RunInstances", "ec2:CreatePlacementGroup"]},
//	  {"Sid": "TagAtCreation", "Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "*",
//	    "Condition": {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreatePlacementGroup"]}}},
//	  {"Sid": "Ours", "Effect": "Allow", "Resource": "*",
//	    "Action": ["ec2:TerminateInstances", "ec2:CreateTags", "ec2:GetConsoleOutput", "ec2:DeletePlacementGroup"],
//	    "Condition": {"StringLike": {"aws:ResourceTag/gpubroker-owner": "*"}}},
//	  {"Sid": "End", "Effect": "Allow", "Resource": "arn:aws:scheduler:*:ACCOUNT:schedule/default/gpubroker-*",
//	    "Action": ["scheduler:CreateSchedule", "scheduler:UpdateSchedule", "scheduler:DeleteSchedule"]},
//	  {"Sid": "PassEnd", "Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::ACCOUNT:role/gpubroker-end"},
//	  {"Sid": "Events", "Effect": "Allow", "Resource": "arn:aws:sqs:*:ACCOUNT:gpubroker",
//	    "Action": ["sqs:GetQueueUrl", "sqs:ReceiveMessage", "sqs:DeleteMessage"]}]}
//
// With instance_profile, iam:PassRole of its role too. The role of end_role is
// trusted by scheduler.amazonaws.com (sts:AssumeRole) and may end our machines:
//
//	{"Statement": [{"Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "*",
//	  "Condition": {"StringLike": {"aws:ResourceTag/gpubroker-owner": "*"}}}]}
//
// # Who ends a machine
//
// With end_role, SelfEnd is rolling: each machine has a one-time schedule, named
// after its request, that terminates it at its lease's end and then deletes itself.
// Scheduler invokes within 60 s, which the stop time holds, so a cap holds though
// broker and machine are both lost. The schedule needs the instance's id and is made
// right after the launch; a broker that dies in between leaves a machine that only its
// own timer ends, until the next MoveEnd makes the schedule. End is reported only
// for machines whose schedule is there.
//
// Without end_role, SelfEnd is guest: the machine powers itself off, and since it
// is launched with shutdown behaviour "terminate" that ends the bill. A machine whose
// system hangs is not covered.
//
// On spot the price bound, less disk and address, is EC2's maximum price: a market
// that rises above it takes the machine. On-demand prices do not move in a
// machine's life.
//
// # Quirks met
//
//   - Client tokens count per zone and call ("RunInstances idempotency",
//     docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html): the adapter
//     remembers where it asked, for as long as the process lives.
//   - Fractions of a GPU (g6f, gr6f) report Count 0; the size is
//     LogicalGpuCount × GpuPartitionSize.
//   - The price list holds Capacity Blocks, reservations, other tenancies and other
//     systems under the same instance type (filters in prices.go).
//   - Types sold in Capacity Blocks alone have no on-demand price and are left
//     out; a log line says how many.
//   - DescribeSpotPriceHistory ends with an empty token, not with none.
//   - An instance that was just launched may be unknown for some seconds
//     ("Eventual consistency", docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
//   - A schedule and a person end a machine by the same call; the end's time tells
//     them apart. Price and capacity have one code, Server.SpotInstanceTermination.
//   - A machine with several network cards can have no public address: EFA on all
//     cards needs network.private, otherwise one card has it.
//   - The default image's open driver knows no GPU before Turing, so p3 needs an image
//     of one's own; g4ad (AMD) and p6e-gb200 too.
//   - EC2 throttles by call and region; it sends no Retry-After.
package aws
