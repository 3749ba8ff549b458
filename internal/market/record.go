package market

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// record is one look at one provider: new series with their first price, and the
// prices that changed. A price of 0 means that it is no longer offered.
//
// On disk it is the length of the rest and its CRC-32C, both 4 bytes with the
// lowest first, and then, numbers as varints: the second since 1970; the provider;
// how many new series and, for each, how many bytes of its name are those of the
// one before, the rest of its name, and its price in nano-units; how many changes
// and, for each, its number less the one before's and its price less its last.
type record struct {
	at       time.Time
	provider string
	fresh    []fresh
	changes  []change
}

type fresh struct {
	name  string // see nameOf
	price money.Rate
}

type change struct {
	series int // number, counted within the provider from the start of the day
	price  money.Rate
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mostRecord is the longest record that is believed.
const mostRecord = 256 << 20

// encode writes a record. Changes carry their last price as their base, see diff.
func (r *record) encode() []byte {
	b := make([]byte, 8, 64+24*len(r.fresh)+8*len(r.changes))
	b = binary.AppendVarint(b, r.at.Unix())
	b = appendText(b, r.provider)
	b = binary.AppendUvarint(b, uint64(len(r.fresh)))
	last := ""
	for _, f := range r.fresh {
		n := 0
		for n < len(last) && n < len(f.name) && last[n] == f.name[n] {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		b = appendText(b, f.name[n:])
		b = binary.AppendUvarint(b, uint64(f.price))
		last = f.name
	}
	b = binary.AppendUvarint(b, uint64(len(r.changes)))
	at := 0
	for _, c := range r.changes {
		b = binary.AppendUvarint(b, uint64(c.series-at))
		b = binary.AppendUvarint(b, uint64(c.price))
		at = c.series
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-8))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errTorn = errors.New("a record is torn or damaged")

// decode reads what encode wrote after length and checksum.
func decode(b []byte) (*record, error) {
	in := bytes.NewReader(b)
	bad := false
	number := func() uint64 {
		n, err := binary.ReadUvarint(in)
		bad = bad || err != nil
		return n
	}
	count := func() int { // of things that take a byte each at least
		n := number()
		if n > uint64(in.Len()) {
			bad = true
			return 0
		}
		return int(n)
	}
	text := func() string {
		t := make([]byte, count())
		if _, err := io.ReadFull(in, t); err != nil {
			bad = true
		}
		return string(t)
	}
	second, err := binary.ReadVarint(in)
	bad = err != nil
	r := &record{at: time.Unix(second, 0).UTC(), provider: text()}
	last := ""
	for range count() {
		n := number()
		if n > uint64(len(last)) {
			return nil, errTorn
		}
		last = last[:n] + text()
		r.fresh = append(r.fresh, fresh{last, money.Rate(number())})
	}
	at := 0
	for range count() {
		at += int(number())
		r.changes = append(r.changes, change{at, money.Rate(number())})
	}
	if bad || in.Len() > 0 {
		return nil, errTorn
	}
	return r, nil
}

// readLog calls each with the records of a log, and returns how many bytes of it
// are whole. Where a record is torn, or goes with none before it, as after two
// processes have used a folder, the rest is left out.
func readLog(in io.Reader, each func(*record) error) (whole int64, err error) {
	var head [8]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return whole, nil
			}
			return whole, err
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > mostRecord {
			return whole, nil
		}
		// Read as it comes: a length that is damaged takes no memory.
		var body bytes.Buffer
		if m, err := io.CopyN(&body, in, int64(n)); err != nil {
			if m < int64(n) && errors.Is(err, io.EOF) {
				return whole, nil
			}
			return whole, err
		}
		if crc32.Checksum(body.Bytes(), castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			return whole, nil
		}
		r, err := decode(body.Bytes())
		if err != nil {
			return whole, nil //nolint:nilerr // as good as torn: what follows cannot be placed
		}
		switch err := each(r); {
		case errors.Is(err, errTorn):
			return whole, nil
		case err != nil:
			return whole, err
		}
		whole += int64(len(head)) + int64(n)
	}
}

// state is what the records of a day so far amount to.
type state struct{ providers map[string]*recorded }

type recorded struct {
	numbers map[string]int // by name
	prices  []money.Rate
	looked  time.Time
}

func newState() state { return state{map[string]*recorded{}} }

// diff is what a list brings that is new, nil when that is not worth a record.
func (s state) diff(provider string, offers []providers.Offer, at time.Time) *record {
	r := &record{at: at, provider: provider}
	known := s.providers[provider]
	if known == nil {
		known = &recorded{}
	}
	seen := make(map[int]bool, len(known.prices))
	names := make(map[string]bool)
	for i := range offers {
		o := &offers[i]
		name, price := nameOf(o), ListPrice(o)
		if price <= 0 || names[name] {
			continue
		}
		n, ok := known.numbers[name]
		if !ok {
			names[name] = true
			r.fresh = append(r.fresh, fresh{name, price})
			continue
		}
		if seen[n] = true; known.prices[n] != price {
			r.changes = append(r.changes, change{n, price})
		}
	}
	for n, price := range known.prices {
		if price > 0 && !seen[n] {
			r.changes = append(r.changes, change{n, 0})
		}
	}
	if len(r.fresh) == 0 && len(r.changes) == 0 && at.Sub(known.looked) < quiet {
		return nil
	}
	slices.SortFunc(r.fresh, func(a, b fresh) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(r.changes, func(a, b change) int { return cmp.Compare(a.series, b.series) })
	r.changes = slices.CompactFunc(r.changes, func(a, b change) bool { return a.series == b.series })
	return r
}

func (s state) apply(r *record) error {
	known := s.providers[r.provider]
	if known == nil {
		known = &recorded{numbers: map[string]int{}}
		s.providers[r.provider] = known
	}
	for _, f := range r.fresh {
		known.numbers[f.name] = len(known.prices)
		known.prices = append(known.prices, f.price)
	}
	for _, c := range r.changes {
		if c.series < 0 || c.series >= len(known.prices) {
			return fmt.Errorf("%w: the one of %s changes a price that none before it has", errTorn, r.at.Format(time.RFC3339))
		}
		known.prices[c.series] = c.price
	}
	known.looked = r.at
	return nil
}

// nameOf is a series within its provider as one word, in an order that puts like
// beside like.
func nameOf(o *providers.Offer) string {
	var b strings.Builder
	b.Grow(64)
	for _, s := range [...]string{o.Type, o.GPU, strconv.FormatFloat(o.GPUs, 'g', -1, 64), string(o.Currency), string(o.Kind), o.Region, o.Zone} {
		b.WriteString(s)
		b.WriteByte(0)
	}
	return b.String()
}

// seriesOf reads what nameOf wrote.
func seriesOf(provider, name string) (Series, bool) {
	p := strings.Split(name, "\x00")
	if len(p) != 8 {
		return Series{}, false
	}
	gpus, err := strconv.ParseFloat(p[2], 64)
	return Series{
		Market: providers.Market{Provider: provider, Region: p[5], Zone: p[6], Type: p[0], Kind: providers.Kind(p[4])},
		GPU:    p[1], GPUs: gpus, Currency: money.Currency(p[3]),
	}, err == nil
}
