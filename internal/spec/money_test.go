package spec

import (
	"strings"
	"testing"

	"gpubroker/internal/money"
)

func TestMoneyIsInTheLedgersCurrency(t *testing.T) {
	for text, want := range map[string]string{
		"budget: {max: 5 EUR}":          "budget.max: the ledger is in USD, found 5.00 EUR",
		"resources: {max_price: 2 EUR}": "resources.max_price: the ledger is in USD, found 2.00 EUR",
		"value_of_time: 3 EUR":          "value_of_time: the ledger is in USD, found 3.00 EUR",
		"budget: {max: 5 USD}\nresources: {max_price: 2 USD}\nvalue_of_time: 3 USD": "",
		"priority: 4": "",
	} {
		j, err := Parse("job.yaml", []byte("name: x\nrun: {command: [x]}\n"+text+"\n"))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		err = j.PricedIn(money.USD)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
