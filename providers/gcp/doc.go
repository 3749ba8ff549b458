// Package gcp is the adapter for Google Cloud: Compute Engine API v1 through
// cloud.google.com/go/compute/apiv1 (REST) and plain REST for lists, prices from
// the Cloud Billing catalog API v1, permissions from Resource Manager API v1.
//
// It implements [providers.Provider] with Quotas, Preflight and Console.
//
// # Set-up
//
// One account is one project.
//
//  1. Enable the APIs: gcloud services enable compute.googleapis.com
//     cloudbilling.googleapis.com cloudresourcemanager.googleapis.com
//  2. Make a role with the permissions below and a service account with it:
//     gcloud iam roles create gpubroker --project=PROJECT --file=role.yaml;
//     gcloud iam service-accounts create gpubroker --project=PROJECT;
//     gcloud projects add-iam-policy-binding PROJECT
//     --member=serviceAccount:gpubroker@PROJECT.iam.gserviceaccount.com
//     --role=projects/PROJECT/roles/gpubroker
//  3. Give the broker its credentials: Application Default Credentials where it
//     runs (a machine of Google's with that service account, workload identity
//     federation, or gcloud auth application-default login), or a key file named
//     in credentials.
//  4. Ask for GPU quota: GPUS_ALL_REGIONS of the project, and per region
//     PREEMPTIBLE_NVIDIA_…_GPUS for spot, NVIDIA_…_GPUS on demand. New projects have
//     none.
//  5. gpubroker providers check names each permission that is missing.
//
// # Settings
//
//	project: my-project-123                 # the one that is needed
//	credentials: file:/etc/gpubroker/gcp.json
//	regions: [us-central1, europe-west4]    # default all
//	families: [g2, a2, a3]                  # default a2 a3 a4 g2 g4 n1 e2 n2 c3
//	image: projects/P/global/images/family/F
//	disk: 100GiB
//	network: {subnet: gpus, private: true, proxy: "http://10.0.0.2:3128"}
//	tags: {cost-center: "42"}               # labels on instances and disks
//	max_run: 24h                            # at which Google deletes a machine; to 120d
//	service_account: worker@P.iam.gserviceaccount.com
//	endpoint: http://127.0.0.1:8700         # emulators and proxies: every API
//	billing_endpoint: https://cloudbilling.googleapis.com
//	anonymous: true                         # no credentials, with endpoint alone
//
// # Permissions
//
// The least that works, as role.yaml:
//
//	title: gpubroker
//	stage: GA
//	includedPermissions:
//	- compute.acceleratorTypes.list
//	- compute.disks.create
//	- compute.disks.delete
//	- compute.disks.list
//	- compute.disks.setLabels
//	- compute.globalOperations.list
//	- compute.instances.create
//	- compute.instances.delete
//	- compute.instances.get
//	- compute.instances.getSerialPortOutput
//	- compute.instances.list
//	- compute.instances.setLabels
//	- compute.instances.setMetadata
//	- compute.machineTypes.list
//	- compute.projects.get
//	- compute.regions.list
//	- compute.resourcePolicies.create
//	- compute.resourcePolicies.delete
//	- compute.resourcePolicies.use
//	- compute.subnetworks.use
//	- compute.subnetworks.useExternalIp
//	- compute.zoneOperations.get
//	- compute.zoneOperations.list
//
// With service_account also compute.instances.setServiceAccount and the role
// roles/iam.serviceAccountUser on that account; the account itself needs a role
// with compute.instances.delete alone. A private network needs no
// compute.subnetworks.useExternalIp. The catalog of prices needs no permission.
//
// # Who ends a machine
//
// SelfEnd is fixed: every instance, spot or on demand, is inserted with
// scheduling.maxRunDuration and instanceTerminationAction DELETE, so that Google
// deletes it with its disk after max_run even if the broker and the machine are
// both dead. The time cannot be moved while a machine runs, so it is the longest
// permitted life and not the lease: a cap with guard strict reserves up to it, and
// jobs that take longer are refused here; set max_run to what jobs need. Before it,
// the broker ends machines as their leases end. A machine that is powered off from
// within stays as TERMINATED and its disk is billed, so the agent does not power
// off: it stops its tasks, or with service_account deletes the instance.
//
// # Quirks
//
//   - A launch that is accepted may fail in its operation: want of capacity and
//     exceeded quotas show only there. Launch holds one operations.wait open for
//     20 s; what fails later, Describe tells from the operations.
//     https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability
//   - Instances that are deleted take their labels and type with them. Describe
//     tells from the zone's operations when and why a machine ended (preempted,
//     deferredDelete for maxRunDuration, delete, guestTerminate), for about two
//     weeks. Its market and tags are known only to the process that saw it alive.
//     https://cloud.google.com/compute/docs/instances/create-use-spot
//   - Names are unique in a zone alone: a launch whose request this process has not
//     seen is looked for in all zones first, which is one more call.
//   - requestId brings back an operation that failed, too; so a refusal that is
//     certain changes the next one.
//   - The library's lists ignore their context (compute v1.75.0), hence plain REST.
//   - A filter on an operation's targetLink by ":" finds nothing; "eq" with a regular
//     expression does.
//   - A zone that Google cannot reach makes a list a part of itself, in a warning;
//     that is an error here.
//   - The catalog prices parts: cores, memory, GPUs, local SSD, disk, address. Rules
//     stand in data/families.csv; gpubroker providers check shows what no rule fits. Spot
//     prices of B200 slices are tagged OnDemand, and only the words tell. GiB-months
//     have 720 hours. Prices are a day old at most; every refresh reads the whole
//     catalog, some ten calls.
//     https://cloud.google.com/billing/v1/how-tos/catalog-api
//   - Local SSDs that come with a2-ultragpu and a3 types are billed apart and stand
//     in the price; on a4 they are part of the GPU's.
//   - a3-highgpu-1g to 4g, a3-ultragpu and a4 cannot be had on demand without a
//     reservation: they are offered as spot.
//     https://cloud.google.com/compute/docs/accelerator-optimized-machines
//   - Shares of a GPU (g4-standard-6 to 24), a4x and machines with shared cores have
//     no price rule and are not offered.
//   - GPU machines that Google deletes within 7 days may use preemptible quota on
//     demand too; here on-demand machines are counted against NVIDIA_…_GPUS alone.
//     https://cloud.google.com/compute/docs/instances/limit-vm-runtime
//   - There is no price bound: spot prices may change once a day.
//   - The machines of a group get a compact placement policy where the family can
//     have one; the RDMA networks of a3-ultragpu and a4 need a VPC of their own,
//     which is not made here.
//   - The user data is the metadata key startup-script, which runs at every boot;
//     automaticRestart is off.
package gcp
