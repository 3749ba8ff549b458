package aws

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// node is an element of an XML answer.
type node struct {
	name string
	text string
	kids []node
}

func el(name string, kids ...node) node { return node{name: name, kids: kids} }

// tx is an element with text; moments are written as EC2 writes them.
func tx(name string, v any) node {
	if t, ok := v.(time.Time); ok {
		v = stamp(t)
	}
	return node{name: name, text: fmt.Sprint(v)}
}

// set is a list in EC2's form.
func set(name string, items ...[]node) node {
	n := node{name: name}
	for _, kids := range items {
		n.kids = append(n.kids, node{name: "item", kids: kids})
	}
	return n
}

// opt is an element that is left out when it is empty.
func opt(name, v string) []node {
	if v == "" {
		return nil
	}
	return []node{tx(name, v)}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (n node) write(b *strings.Builder) {
	if n.text == "" && len(n.kids) == 0 {
		b.WriteString("<" + n.name + "/>")
		return
	}
	b.WriteString("<" + n.name + ">")
	_ = xml.EscapeText(b, []byte(n.text)) // a builder has no errors
	for _, kid := range n.kids {
		kid.write(b)
	}
	name, _, _ := strings.Cut(n.name, " ")
	b.WriteString("</" + name + ">")
}

func render(n node) []byte {
	var b strings.Builder
	b.WriteString(xml.Header)
	n.write(&b)
	return []byte(b.String())
}

// requestID is the same for every call: nothing depends on it.
const requestID = "59dbff89-35bd-4eac-99ed-be587EXAMPLE"

// document is the answer to the call.
func (q *request) document(kids []node) []byte {
	switch q.service {
	case "ec2":
		return render(el(q.action+`Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"`, append([]node{tx("requestId", requestID)}, kids...)...))
	default:
		xmlns := map[string]string{"sts": "https://sts.amazonaws.com/doc/2011-06-15/", "sqs": "http://queue.amazonaws.com/doc/2012-11-05/"}[q.service]
		return render(el(q.action+`Response xmlns="`+xmlns+`"`, el(q.action+"Result", kids...), el("ResponseMetadata", tx("RequestId", requestID))))
	}
}
