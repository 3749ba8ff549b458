package policy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Grid is how often the broker is taken to look at its markets.
const Grid = 200 * time.Second

//go:embed knowledge.json
var shipped []byte

// Shipped is what the product believes of markets that it has not seen: fitted to
// recorded markets by `go test ./internal/backtest -run TestShipped -update`;
// docs/spot-policy.md says which, and by what rule.
var Shipped = sync.OnceValue(func() Knowledge {
	var k Knowledge
	if err := json.Unmarshal(shipped, &k); err != nil {
		panic(fmt.Sprintf("knowledge.json: %v", err)) // it is ours
	}
	return k
})

// ShippedModel is Shipped made ready for the broker.
var ShippedModel = sync.OnceValue(func() *Model { return NewModel(Shipped(), Grid) })
