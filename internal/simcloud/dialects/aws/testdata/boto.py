"""Asks the fake what an independent client of AWS asks, and says so when an
answer is not what AWS's own documents promise."""

import os
import sys
from datetime import datetime, timedelta, timezone

import boto3
from botocore.exceptions import ClientError

image = sys.argv[1]


def client(service, region="us-east-1"):
    return boto3.client(service, endpoint_url=os.environ["ENDPOINT"], region_name=region)


def check(what, ok, seen=None):
    if not ok:
        sys.exit(f"{what}: {seen!r}")


ec2 = client("ec2")
pages = list(ec2.get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 5}))
check("pages of types", len(pages) >= 3, len(pages))
types = {t["InstanceType"]: t for p in pages for t in p["InstanceTypes"]}
share = types["g6f.xlarge"]["GpuInfo"]["Gpus"][0]
check("a share of a GPU has the count 0", share["Count"] == 0 and share["MemoryInfo"]["SizeInMiB"] == 2861, share)
check("no GPU", "GpuInfo" not in types["c6i.xlarge"])

pages = list(ec2.get_paginator("describe_spot_price_history").paginate(
    InstanceTypes=["g6.xlarge"], StartTime=datetime.now(timezone.utc) - timedelta(hours=1)))
prices = [p for page in pages for p in page["SpotPriceHistory"]]
check("prices of two systems and moments", len(prices) == 12, len(prices))
check("a moment has its zone", all(p["Timestamp"].tzinfo for p in prices))

batch = ec2.run_instances(
    ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=20, ClientToken="batch",
    Placement={"AvailabilityZone": "us-east-1b"}, InstanceMarketOptions={"MarketType": "spot"},
    TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "who", "Value": "boto"}]}])
check("a part of what was asked for", len(batch["Instances"]) == 12, len(batch["Instances"]))
check("launch indexes", [i["AmiLaunchIndex"] for i in batch["Instances"]] == list(range(12)))
try:
    ec2.run_instances(ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1,
                      Placement={"AvailabilityZone": "us-east-1b"}, InstanceMarketOptions={"MarketType": "spot"})
    check("no capacity", False)
except ClientError as e:
    check("no capacity", e.response["Error"]["Code"] == "InsufficientInstanceCapacity", e)

elsewhere = ec2.run_instances(
    ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, ClientToken="batch", Placement={"AvailabilityZone": "us-east-1c"})
check("client tokens count per zone", elsewhere["Instances"][0]["InstanceId"] not in {i["InstanceId"] for i in batch["Instances"]})
ec2.terminate_instances(InstanceIds=[elsewhere["Instances"][0]["InstanceId"]])

plain = dict(ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, Placement={"AvailabilityZone": "us-east-1a"})
for code, changes in {
    "SpotMaxPriceTooLow": {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.01"}}},
    "InvalidAMIID.NotFound": {"ImageId": "ami-0123"},
    "InvalidParameterValue": {"InstanceType": "x9.large"},
    "DryRunOperation": {"DryRun": True},
    "InvalidPlacementGroup.Unknown": {"Placement": {"GroupName": "none"}},
    "InvalidSubnetID.NotFound": {"SubnetId": "subnet-0"},
}.items():
    try:
        ec2.run_instances(**{**plain, **changes})
        check(code, False)
    except ClientError as e:
        check(code, e.response["Error"]["Code"] == code, e)
try:
    ec2.describe_instances(InstanceIds=["i-0ffffffffffffffff"])
    check("no instance", False)
except ClientError as e:
    check("no instance", e.response["Error"]["Code"] == "InvalidInstanceID.NotFound", e)

found = [i for page in ec2.get_paginator("describe_instances").paginate(
    Filters=[{"Name": "tag:who", "Values": ["boto"]}], PaginationConfig={"PageSize": 5})
    for r in page["Reservations"] for i in r["Instances"]]
check("machines over pages", len(found) == 12, len(found))
ids = [i["InstanceId"] for i in found]
gone = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
check("all end", len(gone) == 12 and gone[0]["CurrentState"]["Name"] == "shutting-down", gone)

scheduler = client("scheduler")
schedule = {
    "Name": "end-1", "ScheduleExpression": "at(2099-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"},
    "Target": {"Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": "arn:aws:iam::123456789012:role/r",
               "Input": '{"InstanceIds":["%s"]}' % ids[0]},
}
try:
    scheduler.update_schedule(**schedule)
    check("no schedule", False)
except ClientError as e:
    check("no schedule", e.response["Error"]["Code"] == "ResourceNotFoundException", e)
scheduler.create_schedule(**schedule)
check("the schedule", scheduler.get_schedule(Name="end-1")["ScheduleExpression"] == schedule["ScheduleExpression"])
try:
    scheduler.create_schedule(**dict(schedule, ClientToken="other"))
    check("twice", False)
except ClientError as e:
    check("twice", e.response["Error"]["Code"] == "ConflictException", e)
scheduler.delete_schedule(Name="end-1")

parameter = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
value = client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
check("the image", ec2.describe_images(ImageIds=[value])["Images"][0]["RootDeviceName"] == "/dev/sda1")
quotas = [q for p in client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="ec2") for q in p["Quotas"]]
check("quotas", {"L-3819A6DF", "L-417A185B"} <= {q["QuotaCode"] for q in quotas}, quotas)
check("identity", client("sts").get_caller_identity()["Account"] == "123456789012")
scores = ec2.get_spot_placement_scores(InstanceTypes=["g4dn.xlarge"], TargetCapacity=2, RegionNames=["us-east-1"])
check("scores", 1 <= scores["SpotPlacementScores"][0]["Score"] <= 10, scores)
products = client("pricing").get_products(ServiceCode="AmazonVPC", Filters=[
    {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}, {"Type": "TERM_MATCH", "Field": "group", "Value": "VPCPublicIPv4Address"}])
check("addresses", len(products["PriceList"]) == 2, products)
print("all well")
