package rest

import (
	"math/big"
	"strconv"
	"strings"

	"gpubroker/internal/money"
)

// Price is a price per hour as a cloud writes it: a JSON number, text or null.
type Price struct{ Text string }

// UnmarshalJSON takes the digits as they are.
func (p *Price) UnmarshalJSON(data []byte) error {
	p.Text = strings.Trim(string(data), `"`)
	if p.Text == "null" {
		p.Text = ""
	}
	return nil
}

// dearest is the highest price that is believed.
const dearest = 1e9

// Rate returns the exact price; false where none above zero is said. Digits beyond
// a nano-unit, of a binary fraction for example, are rounded up.
func (p Price) Rate() (money.Rate, bool) {
	if r, err := money.RateOf(p.Text); err == nil {
		return r, r > 0
	}
	if f, err := strconv.ParseFloat(p.Text, 64); err != nil || f <= 0 || f > dearest {
		return 0, false
	}
	x, ok := new(big.Rat).SetString(p.Text)
	if !ok {
		return 0, false
	}
	x.Mul(x, big.NewRat(int64(money.Unit), 1))
	n, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	return money.Rate(n.Int64()), n.IsInt64()
}
