package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// rowset builds the one parameter that carries many rows: a JSON object of
// arrays, {"0":[…],"1":[…]}, an object because PostgreSQL's jsonb_each wants one.
// The columns of an array are in the order of its insert statement.
type rowset struct {
	buf  []byte
	doc_ bytes.Buffer
	n    int
	err  error
}

func (r *rowset) begin() {
	r.buf = append(r.buf, ",\""[r.first():]...)
	r.buf = strconv.AppendInt(r.buf, int64(r.n), 10)
	r.buf = append(r.buf, `":[`...)
	r.n++
}

func (r *rowset) first() int {
	if r.n == 0 {
		r.buf = append(r.buf[:0], '{')
		return 1
	}
	return 0
}

func (r *rowset) end() { r.buf[len(r.buf)-1] = ']' }

// text adds a column. A NUL is refused, since PostgreSQL cannot keep one, and
// so is text that is not UTF-8, which JSON would silently change.
func (r *rowset) text(s string) {
	if r.err == nil && (strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s)) {
		r.err = fmt.Errorf("%q has a NUL or is not UTF-8; write it as plain text", s)
	}
	r.buf = appendQuoted(r.buf, s)
	r.buf = append(r.buf, ',')
}

func (r *rowset) num(n int64) {
	r.buf = strconv.AppendInt(r.buf, n, 10)
	r.buf = append(r.buf, ',')
}

func (r *rowset) flag(b bool) {
	if b {
		r.num(1)
	} else {
		r.num(0)
	}
}

func (r *rowset) time(t time.Time) { r.num(micros(t)) }

// doc adds the row itself, JSON within a JSON string, so that both engines keep
// it byte for byte.
func (r *rowset) doc(row any) {
	r.doc_.Reset()
	e := json.NewEncoder(&r.doc_)
	e.SetEscapeHTML(false) // a job's spec keeps its bytes, and with them its digest
	if err := e.Encode(row); err != nil && r.err == nil {
		r.err = err
	}
	r.buf = appendQuoted(r.buf, bytes.TrimSuffix(r.doc_.Bytes(), []byte{'\n'}))
	r.buf = append(r.buf, ',')
}

func (r *rowset) String() string {
	if r.n == 0 {
		return "{}"
	}
	return string(append(r.buf, '}'))
}

func appendQuoted[T string | []byte](buf []byte, s T) []byte {
	const hex = "0123456789abcdef"
	buf = append(buf, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		buf = append(buf, s[start:i]...)
		if c < ' ' {
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			buf = append(buf, '\\', c)
		}
		start = i + 1
	}
	buf = append(buf, s[start:]...)
	return append(buf, '"')
}

// keySet is a JSON object with the given keys, for statements that ask which.
func keySet(keys []string) string {
	var r rowset
	r.buf = append(r.buf, '{')
	for i, k := range keys {
		if i > 0 {
			r.buf = append(r.buf, ',')
		}
		r.buf = append(appendQuoted(r.buf, k), ":1"...)
	}
	return string(append(r.buf, '}'))
}

// micros are the unix microseconds of a column; the zero time is 0. Times
// outside the range of int64 microseconds do not occur.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// until is micros for an upper bound, where the zero time means no bound.
func until(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixMicro()
}
