package aws

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	"gpubroker/internal/simcloud"
)

// quotaCodes are Service Quotas' codes of EC2's limits by their names
// (docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html).
func quotaCodes() map[string]string {
	return map[string]string{
		"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": "L-1216C47A",
		"Running On-Demand G and VT instances":                             "L-DB2E81BA",
		"Running On-Demand P instances":                                    "L-417A185B",
		"All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests":  "L-34B43A08",
		"All G and VT Spot Instance Requests":                              "L-3819A6DF",
		"All P4, P3 and P2 Spot Instance Requests":                         "L-7212CCBC",
		"All P5 Spot Instance Requests":                                    "L-C4BD4855",
	}
}

func (q *request) listServiceQuotas() {
	var in struct {
		ServiceCode, NextToken string
		MaxResults             int
	}
	q.serveJSON(&in, simcloud.Call{Op: "quotas"}, func(time.Duration) (any, error) {
		if in.ServiceCode != "ec2" {
			return nil, errorf(http.StatusBadRequest, "NoSuchResourceException", "The service %s does not exist.", in.ServiceCode)
		}
		quotas := []map[string]any{}
		add := func(name string, value float64) {
			code, ok := quotaCodes()[name]
			if !ok {
				h := fnv.New32a()
				_, _ = h.Write([]byte(name)) // it has no errors
				code = fmt.Sprintf("L-%08X", h.Sum32())
			}
			quotas = append(quotas, map[string]any{
				"ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)", "QuotaCode": code, "QuotaName": name,
				"QuotaArn": "arn:aws:servicequotas:" + q.region + ":" + account + ":ec2/" + code,
				"Value":    value, "Unit": "None", "Adjustable": true, "GlobalQuota": false,
			})
		}
		add("EC2-VPC Elastic IPs", 5)
		for _, quota := range q.w.Quotas() {
			if quota.Region == "" || quota.Region == q.region {
				add(quota.Name, quota.Limit)
			}
		}
		from, to, next, err := q.page(len(quotas), in.NextToken, in.MaxResults, 1, 100)
		if err != nil {
			return nil, err
		}
		out := map[string]any{"Quotas": quotas[from:to]}
		if next != "" {
			out["NextToken"] = next
		}
		return out, nil
	})
}
