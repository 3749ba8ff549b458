package providertest

import (
	"runtime"
	"strings"
	"time"
)

// goroutinesOf returns the stacks of the goroutines that run or were started by
// code of a package, by their number. Tests themselves do not count.
func goroutinesOf(pkg string) map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	found := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if !strings.Contains(stack, "\n"+pkg+".") && !strings.Contains(stack, "created by "+pkg+".") {
			continue
		}
		if strings.Contains(stack, "testing.tRunner(") {
			continue
		}
		head, _, _ := strings.Cut(stack, "\n")
		number, _, _ := strings.Cut(strings.TrimPrefix(head, "goroutine "), " ")
		found[number] = stack
	}
	return found
}

// newGoroutines returns the stacks of those that were not there before and do
// not end within a few seconds.
func newGoroutines(pkg string, before map[string]string, advance func(time.Duration)) []string {
	for try := 0; ; try++ {
		var left []string
		for number, stack := range goroutinesOf(pkg) {
			if _, ok := before[number]; !ok {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || try == 50 {
			return left
		}
		advance(100 * time.Millisecond)
	}
}
