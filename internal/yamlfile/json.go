package yamlfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ParseJSON reads JSON under the same rules as Parse: the machine-written form
// of what people write in YAML. Errors point into one line.
func ParseJSON(name string, text []byte) *Doc {
	d := &Doc{file: newSource(name, string(text)), places: map[string]Pos{}}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	r := jsonReader{d, dec}
	root, err := r.value(0)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			d.Root = root
			return d
		}
		err = fmt.Errorf("more follows the first value")
	}
	d.errs = append(d.errs, Error{pos: r.pos(), Message: fmt.Sprintf("this is no valid JSON: %v", err)})
	return d
}

type jsonReader struct {
	doc *Doc
	dec *json.Decoder
}

func (r jsonReader) pos() Pos {
	return Pos{r.doc.file, 1, int(r.dec.InputOffset()) + 1}
}

func (r jsonReader) value(depth int) (*Node, error) {
	r.doc.nodes++
	if depth > maxDepth {
		return nil, fmt.Errorf("nested too deeply")
	}
	n := &Node{Pos: r.pos()}
	t, err := r.dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case nil:
		n.Kind = Null
	case bool, json.Number:
		n.Kind, n.Text = Scalar, fmt.Sprint(t)
	case string:
		n.Kind, n.Text, n.Quoted = Scalar, t, true
	case json.Delim:
		if t == '[' {
			n.Kind = List
			for r.dec.More() {
				item, err := r.value(depth + 1)
				if err != nil {
					return nil, err
				}
				n.Items = append(n.Items, item)
			}
		} else {
			n.Kind = Map
			seen := map[string]bool{}
			for r.dec.More() {
				at := r.pos()
				key, err := r.dec.Token()
				if err != nil {
					return nil, err
				}
				k := fmt.Sprint(key)
				if seen[k] {
					return nil, fmt.Errorf("%q is given twice", k)
				}
				seen[k] = true
				v, err := r.value(depth + 1)
				if err != nil {
					return nil, err
				}
				n.Entries = append(n.Entries, Entry{Key: k, Pos: at, Value: v})
			}
		}
		if _, err := r.dec.Token(); err != nil { // the closing bracket
			return nil, err
		}
	}
	return n, nil
}
