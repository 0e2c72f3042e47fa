package commands

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Quotes returns the blocks of a document that are in no language and have no command: messages, lines of a log, formulas.
func Quotes(document string) (all []string) {
	for _, match := range block.FindAllStringSubmatch(document, -1) {
		language, text := match[2], match[3]
		if match[4] != "" {
			match[1], text = "    ", match[4]
		}
		text = regexp.MustCompile(`(?m)^`+match[1]).ReplaceAllString(text, "")
		if language == "" && len(ofBlock("", text)) == 0 {
			all = append(all, strings.TrimSpace(text))
		}
	}
	return all
}

// Quote says of a block of a page that begins with a text which test compares it with what a program says, or why none does.
type Quote struct{ Page, Begin, By, Why string }

// Quoted returns an error if a page has no block that quotes what a program says, apart from how its lines wrap and what varies. In a quotation
// "…" stands for any words.
func Quoted(top, page, said string) error {
	text, err := os.ReadFile(filepath.Join(top, page))
	if err != nil {
		return err
	}
	words := func(text string) string { return plain(strings.Join(strings.Fields(text), " ")) }
	quotes := Quotes(string(text))
	if !slices.ContainsFunc(quotes, func(q string) bool {
		parts := strings.Split(words(q), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(words(said))
	}) {
		return fmt.Errorf("%s does not quote\n%s\nIts quotations are\n%s", page, said, strings.Join(quotes, "\n\n"))
	}
	return nil
}
