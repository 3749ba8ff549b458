package control

import (
	"cmp"
	"slices"

	"gpubroker/internal/reason"
	"gpubroker/internal/sizing"
	"gpubroker/internal/spec"
	"gpubroker/scheduler"
)

// precisions are the number formats that a job is tried in for an explanation.
var precisions = []string{"bf16", "fp16", "fp8", "int8", "fp4", "int4"}

// trains reports whether the job trains a model: nothing is trained in 4-bit
// integers, which hold weights alone.
func trains(job *spec.Job) bool {
	return job.Model != nil && cmp.Or(job.Model.Method, job.Profile().Method) != string(sizing.Infer)
}

// variants are what a job would ask for in another number format, and by another
// way to train its model: as far as its spec names one.
func variants(job *spec.Job) []scheduler.Variant {
	var out []scheduler.Variant
	add := func(relax scheduler.Relax, why reason.Reason, other *spec.Job) {
		if p, err := prepare(other); err == nil {
			out = append(out, scheduler.Variant{Relax: relax, Why: why, Needs: p.needs, Work: p.work})
		}
	}
	if was := job.Precision; slices.Contains(precisions, was) {
		for _, precision := range precisions {
			if precision != was && (precision != string(sizing.INT4) || !trains(job)) {
				other := *job
				other.Precision = precision
				add(scheduler.RelaxPrecision, reason.New("if_precision", "precision", precision, "was", was), &other)
			}
		}
	}
	if m := job.Model; m != nil && m.Method != "" && m.Method != string(sizing.Infer) {
		for _, method := range sizing.Methods() {
			if method == sizing.Infer || string(method) == m.Method {
				continue
			}
			other, model := *job, *m
			model.Method = string(method)
			other.Model = &model
			add(scheduler.RelaxMethod, reason.New("if_method", "method", string(method), "was", m.Method), &other)
		}
	}
	return out
}
