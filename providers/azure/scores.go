package azure

import (
	"context"
	"net/http"
	"strings"

	"gpubroker/providers"
)

// scoresVersion is that of the spot placement scores
// (learn.microsoft.com/rest/api/compute/spot-placement-scores/post).
const scoresVersion = "2025-06-05"

// of10 are Azure's words as numbers: it says three and no more. What is restricted
// or has no data has no score.
var of10 = map[string]int{"high": 9, "medium": 5, "low": 2}

// Scores asks how likely so many spot machines of a size are to be had, by zone.
func (a *Adapter) Scores(ctx context.Context, instanceType string, regions []string, machines int) ([]providers.Score, error) {
	if err := a.alive(ctx, "scores", instanceType); err != nil {
		return nil, err
	}
	if len(regions) == 0 {
		regions = a.set.Regions
	}
	if len(regions) == 0 {
		return []providers.Score{}, nil
	}
	in := map[string]any{
		"desiredLocations": regions, "desiredSizes": []any{map[string]any{"sku": instanceType}},
		"desiredCount": max(machines, 1), "availabilityZones": true,
	}
	var got struct {
		Scores []struct {
			Region string `json:"region"`
			Zone   string `json:"availabilityZone"`
			Score  string `json:"score"`
		} `json:"placementScores"`
	}
	url := a.cloud.base + "/providers/Microsoft.Compute/locations/" + regions[0] + "/placementScores/spot/generate"
	if err := a.cloud.call(ctx, http.MethodPost, url, scoresVersion, in, &got); err != nil {
		return nil, a.failure(ctx, "scores", instanceType, err)
	}
	out := []providers.Score{}
	for _, s := range got.Scores {
		if n := of10[strings.ToLower(s.Score)]; n > 0 {
			out = append(out, providers.Score{Region: strings.ToLower(s.Region), Zone: s.Zone, Of10: n})
		}
	}
	return out, nil
}
