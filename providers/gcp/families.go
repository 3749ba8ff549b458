package gcp

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed data/families.csv
var familiesCSV string

//go:embed data/attachable.csv
var attachableCSV string

// family is how the machine types of a prefix are billed and built.
type family struct {
	prefix          string
	core, ram, gpu  []string // SKU descriptions, the first that has a price counts; none: not billed apart
	ssd             string   // billed, included, unpriced
	disk            string
	spotOnly        bool
	compactPossible bool
}

// attachment is so many GPUs of a kind on an n1 machine.
type attachment struct {
	card      string
	count     int
	vcpu      int // the largest host
	memoryGiB int
	gpu       string // SKU description
}

// tables are the data files, read once; a broken one is a fault of the build.
var tables = sync.OnceValue(func() (t struct {
	families    []family
	attachments []attachment
},
) {
	for _, r := range records(familiesCSV, 8) {
		words := func(s string) []string {
			if s == "-" {
				return nil
			}
			return strings.Split(s, "|")
		}
		t.families = append(t.families, family{r[0], words(r[1]), words(r[2]), words(r[3]), r[4], r[5], r[6] == "spot", r[7] == "yes"})
	}
	for _, r := range records(attachableCSV, 5) {
		var n [3]int
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(r[i+1]); err != nil {
				panic(fmt.Sprintf("gcp: attachable.csv: %v", err))
			}
		}
		t.attachments = append(t.attachments, attachment{r[0], n[0], n[1], n[2], r[4]})
	}
	return t
})

// records are the lines of a table without its head.
func records(text string, fields int) [][]string {
	r := csv.NewReader(strings.NewReader(text))
	r.Comment, r.FieldsPerRecord = '#', fields
	all, err := r.ReadAll()
	if err != nil || len(all) < 2 {
		panic(fmt.Sprintf("gcp: built-in table: %v", err))
	}
	return all[1:]
}

// familyOf returns the family of a machine type.
func familyOf(machineType string) (family, bool) {
	best, found := family{}, false
	for _, f := range tables().families {
		if strings.HasPrefix(machineType+"-", f.prefix+"-") && len(f.prefix) > len(best.prefix) {
			best, found = f, true
		}
	}
	return best, found
}

// A machine is what a market's type names: a machine type of Google's, on n1 with
// the GPUs that are attached to it ("n1-standard-8+nvidia-tesla-t4x1").
type machine struct {
	typ   string
	card  string
	cards int
}

func (m machine) String() string {
	if m.cards == 0 {
		return m.typ
	}
	return m.typ + "+" + m.card + "x" + strconv.Itoa(m.cards)
}

// parseMachine reads a market's type.
func parseMachine(s string) (machine, error) {
	typ, attached, ok := strings.Cut(s, "+")
	if !ok {
		return machine{typ: typ}, nil
	}
	i := strings.LastIndexByte(attached, 'x')
	if i > 0 {
		if n, err := strconv.Atoi(attached[i+1:]); err == nil && n > 0 {
			return machine{typ, attached[:i], n}, nil
		}
	}
	return machine{}, fmt.Errorf("instance type %q: want a machine type, or one with GPUs such as n1-standard-8+nvidia-tesla-t4x1", s)
}

// attaches reports whether GPUs of a machine are attached to it, rather than part
// of its type.
func attaches(machineType string) bool { return strings.HasPrefix(machineType, "n1-") }

// attachmentsFor returns what can be attached to an n1 type, of the standard and
// highmem kinds from four processors on.
func attachmentsFor(typ string, vcpu, memoryMiB int) []attachment {
	if vcpu < 4 || !strings.HasPrefix(typ, "n1-standard-") && !strings.HasPrefix(typ, "n1-highmem-") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(tables().attachments), func(a attachment) bool {
		return vcpu > a.vcpu || memoryMiB > a.memoryGiB*1024
	})
}

// n1Host is an n1 type that GPUs are attached to.
type n1Host struct {
	name            string
	vcpu, memoryMiB int
}

// n1Hosts are those that [attachmentsFor] lets have GPUs: 3.75 GiB of memory for
// each processor, 6.5 on highmem (cloud.google.com/compute/docs/general-purpose-machines#n1_machine_types).
func n1Hosts() []n1Host {
	var out []n1Host
	for _, n := range []int{4, 8, 16, 32, 64, 96} {
		out = append(out, n1Host{"n1-standard-" + strconv.Itoa(n), n, n * 3840}, n1Host{"n1-highmem-" + strconv.Itoa(n), n, n * 6656})
	}
	return out
}
