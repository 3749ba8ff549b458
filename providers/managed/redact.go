package managed

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	hidden       = "[redacted]"
	longestLine  = 500 // bytes of a provider's words that are kept
	shortestWord = 4   // a shorter secret would hide ordinary text
	tokenLength  = 16  // a word of user data that may be a token
)

// redactor hides secrets, also where they were escaped for a URL or JSON or
// encoded as base64.
type redactor struct{ secrets []string }

func newRedactor(secrets []string) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		if len(s) < shortestWord {
			continue
		}
		r.secrets = append(r.secrets, s, url.QueryEscape(s), url.PathEscape(s),
			base64.StdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)))
		if b, err := json.Marshal(s); err == nil {
			r.secrets = append(r.secrets, string(b[1:len(b)-1]))
		}
	}
	// The longest first, so that no rest of a longer one is left over.
	slices.SortFunc(r.secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	r.secrets = slices.Compact(r.secrets)
	return r
}

// with returns a redactor that hides also a machine's user data: the whole of it
// and each word that is long enough to be a token.
func (r *redactor) with(userData string) *redactor {
	if userData == "" {
		return r
	}
	words := strings.FieldsFunc(userData, func(c rune) bool { return unicode.IsSpace(c) || strings.ContainsRune("\"'=`$(){};,", c) })
	words = slices.DeleteFunc(words, func(w string) bool { return len(w) < tokenLength })
	return newRedactor(slices.Concat([]string{userData}, words, r.secrets))
}

// clean hides the secrets in s.
func (r *redactor) clean(s string) string {
	for _, secret := range r.secrets {
		s = strings.ReplaceAll(s, secret, hidden)
	}
	return s
}

// line hides the secrets in s and makes it one line of bounded length.
func (r *redactor) line(s string) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(r.clean(s), "?"))
	if len(s) > longestLine {
		cut := longestLine
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}

// wrap returns err as it is when its text is clean, else an error with the clean
// text that only says whether a context ended.
func (r *redactor) wrap(err error) error {
	if err == nil {
		return nil
	}
	text := r.line(err.Error())
	if text == err.Error() {
		return err
	}
	return &cleaned{text: text, canceled: errors.Is(err, context.Canceled), deadline: errors.Is(err, context.DeadlineExceeded)}
}

// cleaned stands for an error whose text held a secret. It keeps nothing of it.
type cleaned struct {
	text               string
	canceled, deadline bool
}

func (c *cleaned) Error() string { return c.text }

// Is answers for the context errors.
func (c *cleaned) Is(target error) bool {
	return c.canceled && target == context.Canceled || c.deadline && target == context.DeadlineExceeded
}
