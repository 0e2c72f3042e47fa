package plan

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text from other components can have any length. If the API server rejected a status or an Event for one long text, nothing would be
// reported at all.
const (
	maxRefusal = 1 << 10
	maxEvent   = 1 << 10 // the API's limit

	separator = "; " // between refusals
)

// Shorten cuts a text to at most limit bytes, between characters, and marks the cut.
func Shorten(text string, limit int) string {
	const more = "…"
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}
	end := limit - len(more)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// alike reports whether two texts say the same. They may differ in words with digits, such as ports, addresses, times and identifiers, or
// in why a webhook could not be called. So an answer that differs each time is recorded once.
func alike(a, b string) bool { return a == b || masked(a) == masked(b) }

func masked(text string) string {
	var out strings.Builder
	for refusal := range strings.SplitSeq(text, separator) {
		for _, word := range strings.FieldsFunc(withoutCause(refusal), func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
			if strings.ContainsFunc(word, unicode.IsDigit) {
				word = "#"
			}
			out.WriteString(word)
			out.WriteByte(' ')
		}
		out.WriteString(separator)
	}
	return out.String()
}

// withoutCause returns a text up to the name of the webhook that could not be called.
func withoutCause(text string) string {
	const failed = `failed calling webhook "`
	before, after, found := strings.Cut(text, failed)
	if !found {
		return text
	}
	name, _, _ := strings.Cut(after, `"`)
	return before + failed + name
}

// maxDetail limits how much is shown of the texts of other components.
const maxDetail = 512

// bounded returns a text as one line of at most that many bytes.
func bounded(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	const more = " ..."
	cut := most - len(more)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + more
}
