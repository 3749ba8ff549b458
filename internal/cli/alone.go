package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/market"
)

// publicTime is how long public prices are waited for.
const publicTime = 5 * time.Second

// either asks the broker, or, where none is known, looks at what is built in. A
// broker that only lies about in a client.json and does not answer is no reason to
// say nothing; one that was named is. With snapshot nobody is asked.
func (a *app) either(ctx context.Context, snapshot bool, broker func(*client.Client) error, alone func(*market.Market, string) error) error {
	if !snapshot {
		c, err := a.broker()
		if err == nil {
			done := a.slow("asking the broker")
			err = broker(c)
			done()
			if !errors.Is(err, client.ErrUnreachable) || a.named() {
				return away(err)
			}
		}
		switch {
		case errors.Is(err, errNoBroker):
			fmt.Fprintln(a.Err, "no broker is known; gpubroker serve starts one")
		case errors.Is(err, client.ErrUnreachable):
			fmt.Fprintln(a.Err, strings.TrimSpace(err.Error()))
		default:
			return err
		}
	}
	m, day := a.shelf(ctx, !snapshot)
	return alone(m, day)
}

// shelf is the market without a broker: the offers that are built in and, if
// wanted, over them what clouds publish to everybody. It says what they are. day is
// that of the newest offer that is built in.
func (a *app) shelf(ctx context.Context, public bool) (m *market.Market, day string) {
	m, newest := market.Snapshot()
	day = newest.Format(time.DateOnly)
	var live []string
	if public && a.Public != nil {
		done := a.slow("reading public prices, for 5s at most")
		ctx, cancel := context.WithTimeout(ctx, publicTime)
		for _, l := range a.Public(ctx) {
			if l.Err == nil && len(l.Offers.Offers) == 0 {
				l.Err = errors.New("the list is empty") // no cloud sells nothing
			}
			if l.Err != nil {
				why := firstLine(l.Err)
				if errors.Is(l.Err, context.DeadlineExceeded) {
					why = "no answer within " + span(publicTime)
				}
				fmt.Fprintf(a.Err, "the public prices of %s could not be read: %s\n", l.Title, why)
				continue
			}
			m.Replace(l.Type, l.Offers.Offers, a.Now().UTC(), market.Broken(l.Offers)...)
			live = append(live, l.Title)
		}
		cancel()
		done()
	}
	text := "list prices of a snapshot of " + day + " and before, not live"
	if len(live) > 0 {
		text += "; live are the public prices of " + strings.Join(live, " and ")
	}
	fmt.Fprintln(a.Err, text)
	return m, day
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
