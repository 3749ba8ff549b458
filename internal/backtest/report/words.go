package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/quantity"
)

// usd writes 1234567.891 as 1,234,567.89.
func usd(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for at := strings.Index(s, ".") - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return sign + s
}

func three(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }

func whole(n int) string { return strconv.Itoa(n) }

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 0, 64) + " %" }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// span writes seconds as 1h30m.
func span(seconds int64) string {
	return quantity.Duration(time.Duration(seconds) * time.Second).String()
}

// clock writes a time since the start as 49:05.
func clock(d time.Duration) string {
	m := int(d.Round(time.Minute) / time.Minute)
	return fmt.Sprintf("%d:%02d", m/60, m%60)
}
