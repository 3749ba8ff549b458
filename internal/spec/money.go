package spec

import (
	"fmt"

	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
)

// PricedIn refuses an amount of money in another currency than the ledger's: none
// is ever converted.
func (j *Job) PricedIn(ledger money.Currency) error {
	amounts := []struct {
		path string
		of   *quantity.Money
	}{{"value_of_time", j.ValueOfTime}, {"resources.max_price", j.Resources.MaxPrice}}
	if j.Budget != nil {
		amounts = append(amounts, struct {
			path string
			of   *quantity.Money
		}{"budget.max", &j.Budget.Max})
	}
	for _, a := range amounts {
		if a.of != nil && a.of.Currency != ledger {
			return fmt.Errorf("%s: the ledger is in %s, found %s; nothing is converted, so write it in %s", a.path, ledger, a.of, ledger)
		}
	}
	return nil
}
