package simcloud

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"gpubroker/internal/money"
)

// Replay takes an offer's changes from recorded files: CSV, plain or gzip, with
// a header, a column t of Unix seconds, and a column for each pool. A row holds
// until the next; an empty cell is no record and changes nothing.
type Replay struct {
	Capacity string   `json:"capacity,omitzero"` // file with how many machines can be had
	Price    string   `json:"price,omitzero"`    // file with prices per hour
	Pool     string   `json:"pool"`              // the column
	Each     int      `json:"each,omitzero"`     // machines for each unit of capacity; default 1
	Skip     Duration `json:"skip,omitzero"`     // leave out this much of the start
	Speed    float64  `json:"speed,omitzero"`    // recorded seconds in a second; default 1
}

// Steps reads the files.
func (r Replay) Steps() ([]Step, error) {
	var steps []Step
	for _, f := range []struct {
		path string
		read func(io.Reader) ([]Step, error)
	}{{r.Capacity, r.CapacitySteps}, {r.Price, r.PriceSteps}} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err != nil {
			return nil, fmt.Errorf("simcloud: replay: %w", err)
		}
		more, err := f.read(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("simcloud: replay %s: %w", f.path, err)
		}
		steps = append(steps, more...)
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return int(a.At - b.At) })
	return steps, nil
}

// CapacitySteps reads availability, 0 or 1, or counts.
func (r Replay) CapacitySteps(in io.Reader) ([]Step, error) {
	each := max(r.Each, 1)
	var last *int
	return r.steps(in, func(cell string) (*Step, error) {
		n, err := strconv.Atoi(cell)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no count", cell)
		}
		n *= each
		if last != nil && *last == n {
			return nil, nil
		}
		last = &n
		return &Step{Capacity: &n}, nil
	})
}

// PriceSteps reads prices.
func (r Replay) PriceSteps(in io.Reader) ([]Step, error) {
	var last money.Rate
	return r.steps(in, func(cell string) (*Step, error) {
		p, err := money.RateOf(cell)
		if err != nil {
			return nil, err
		}
		if p <= 0 || p == last {
			return nil, nil // a price of zero is no price
		}
		last = p
		return &Step{Price: &p}, nil
	})
}

func (r Replay) steps(in io.Reader, read func(cell string) (*Step, error)) ([]Step, error) {
	buf := bufio.NewReader(in)
	if magic, err := buf.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, err
		}
		buf = bufio.NewReader(z)
	}
	rows := csv.NewReader(buf)
	rows.ReuseRecord = true
	head, err := rows.Read()
	if err != nil {
		return nil, err
	}
	col, t := slices.Index(head, r.Pool), slices.Index(head, "t")
	if col < 0 || t < 0 {
		return nil, fmt.Errorf("want columns t and %q; there are %q", r.Pool, head)
	}
	speed := r.Speed
	if speed <= 0 {
		speed = 1
	}
	var out []Step
	first := int64(-1)
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := rows.FieldPos(0)
		sec, err := strconv.ParseInt(row[t], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d: t %q is no number", line, row[t])
		}
		if first < 0 {
			first = sec
		}
		if row[col] == "" {
			continue
		}
		step, err := read(row[col])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if step == nil {
			continue
		}
		at := time.Duration(sec-first)*time.Second - r.Skip.D()
		step.At = Duration(max(0, float64(at)/speed))
		out = append(out, *step)
	}
}
