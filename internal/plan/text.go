package plan

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// What comes from outside may be of any length. A status or an Event that the API server refuses for one long text would
// say nothing at all.
const (
	maxRefusal = 1 << 10
	maxEvent   = 1 << 10 // the API's limit

	separator = "; " // between refusals
)

// Shorten cuts a text to at most limit bytes, between characters, and shows that it did.
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

// alike reports whether two texts say the same though they differ: in words with digits, such as ports, addresses, times and
// identifiers, or in how a webhook could not be asked. An answer that differs each time it is given is recorded once.
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

// withoutCause is a text up to the name of the webhook that could not be asked.
func withoutCause(text string) string {
	const failed = `failed calling webhook "`
	before, after, found := strings.Cut(text, failed)
	if !found {
		return text
	}
	name, _, _ := strings.Cut(after, `"`)
	return before + failed + name
}

// maxDetail bounds what is shown of other people's texts.
const maxDetail = 512

// bounded makes one line of a text, of at most so many bytes.
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
