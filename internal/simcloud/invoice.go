package simcloud

import (
	"maps"
	"math/big"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Bill returns what the world has recorded for a machine: the moments and
// prices from which the charge follows, and the charge itself once it is gone.
// A machine that ended before its billing began has neither start nor prices,
// and a total of zero.
func (w *World) Bill(id string) (providers.Bill, error) {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	if err != nil {
		return providers.Bill{}, err
	}
	b := providers.Bill{End: m.ended, Prices: slices.Clone(m.billed)}
	if len(m.billed) > 0 {
		b.Start = m.billed[0].From
	}
	if !m.ended.IsZero() {
		line := w.line(m)
		b.Total = &line.Amount
	}
	return b, nil
}

// Invoice returns what every machine has cost so far. It is computed with big
// integers from the world's own records, apart from package money's charge
// function, so that one checks the other.
func (w *World) Invoice() simapi.Invoice {
	w.enter()
	defer w.mu.Unlock()
	inv := simapi.Invoice{Currency: w.cfg.Currency, At: w.now, Lines: []simapi.InvoiceLine{}}
	for _, m := range w.machines {
		if len(m.billed) == 0 {
			continue
		}
		line := w.line(m)
		inv.Lines = append(inv.Lines, line)
		inv.Total += line.Amount
	}
	return inv
}

// line charges one machine: each stretch of its life at its own price, what
// rounding adds to the life at the last price, one rounding up to a nano-unit.
func (w *World) line(m *machine) simapi.InvoiceLine {
	line := simapi.InvoiceLine{
		Machine: m.id, Request: m.req.Request, Place: m.offer.Place, Tags: maps.Clone(m.req.Tags),
		To: w.now, Open: m.ended.IsZero(), Segments: []simapi.Segment{},
	}
	if !line.Open {
		line.To = m.ended
	}
	if len(m.billed) == 0 {
		return line
	}
	line.From = m.billed[0].From
	lived := line.To.Sub(line.From)
	paid := roundLife(lived, w.cfg.Billing.Unit.D(), w.cfg.Billing.Minimum.D())
	line.Paid = simapi.Duration(paid)
	sum := new(big.Int)
	var last money.Rate
	for i, c := range m.billed {
		to := line.To
		if i+1 < len(m.billed) {
			to = m.billed[i+1].From
		}
		line.Segments = append(line.Segments, simapi.Segment{From: c.From, To: to, Price: c.Price})
		sum.Add(sum, product(to.Sub(c.From), c.Price))
		last = c.Price
	}
	sum.Add(sum, product(paid-lived, last))
	hour := big.NewInt(int64(time.Hour))
	sum.Add(sum, hour).Sub(sum, big.NewInt(1)).Div(sum, hour)
	line.Amount = money.Amount(sum.Int64())
	return line
}

func product(d time.Duration, r money.Rate) *big.Int {
	return new(big.Int).Mul(big.NewInt(int64(d)), big.NewInt(int64(r)))
}

// roundLife is the billing rule: nothing for no life, else at least the
// minimum, in whole units; a unit of zero is a second.
func roundLife(lived, unit, minimum time.Duration) time.Duration {
	if lived <= 0 {
		return 0
	}
	if unit == 0 {
		unit = time.Second
	}
	if lived < minimum {
		lived = minimum
	}
	units := lived / unit
	if units*unit < lived {
		units++
	}
	return units * unit
}
