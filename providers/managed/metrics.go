package managed

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpubroker/providers"
)

// Metrics counts the calls of all providers. Register it where the other
// metrics are; nil counts nothing. No label holds anything that a provider chose.
type Metrics struct {
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	breaches *prometheus.CounterVec
}

// NewMetrics returns metrics that are registered nowhere yet.
func NewMetrics() *Metrics {
	return &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpubroker_provider_calls_total",
			Help: "Tries of calls to a provider, by what came back: ok or an error code. unknown is a defect of the adapter.",
		}, []string{"provider", "op", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gpubroker_provider_call_seconds",
			Help:    "How long the tries took, without waiting for their turn.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 60, 120},
		}, []string{"provider", "op"}),
		breaches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpubroker_provider_breaches_total",
			Help: "Offers and machines that broke the contract with the providers, by reason.",
		}, []string{"provider", "op", "reason"}),
	}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.calls.Describe(ch)
	m.seconds.Describe(ch)
	m.breaches.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.calls.Collect(ch)
	m.seconds.Collect(ch)
	m.breaches.Collect(ch)
}

// call counts one try. The code "" is success.
func (m *Metrics) call(provider, op string, code providers.Code, took time.Duration) {
	if m == nil {
		return
	}
	word := string(code)
	if code == "" {
		word = "ok"
	}
	m.calls.WithLabelValues(provider, op, word).Inc()
	m.seconds.WithLabelValues(provider, op).Observe(took.Seconds())
}

func (m *Metrics) breach(provider, op string, why Reason) {
	if m == nil {
		return
	}
	m.breaches.WithLabelValues(provider, op, string(why)).Inc()
}
