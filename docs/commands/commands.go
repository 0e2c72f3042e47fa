// Package commands knows the commands that the documents show, and which test runs each of them.
package commands

import (
	"regexp"
	"slices"
	"strings"
)

// Command is a command that a document shows.
type Command struct {
	// Page is the path of the document from the top.
	Page string
	// Text is what a reader types, without a prompt, with its continuation lines.
	Text string
	// Output is what the document shows below it; empty if the document shows nothing.
	Output string
}

var (
	// block is a fenced block of code, with its language, or one that is indented below an empty line. A block within a list is indented.
	block = regexp.MustCompile("(?m)^( *)```(\\w*)\n((?:[^\n]*\n)*?) *```$|\n\n((?:    [^\n]*(?:\n|$))+)")
	// programs begin a line that a reader can type.
	programs = regexp.MustCompile(`^(?:base64|cp|curl|fence-proxy|for|go|helm|kind|kubectl|make|npm|openssl) `)
)

var inline = regexp.MustCompile("`((?:go|helm|kubectl|make)\\s[^`]+)`")

// Inline returns the commands in the sentences and tables of a document, each on one line. Some are only the beginning of a command.
func Inline(document string) (all []string) {
	for _, match := range inline.FindAllStringSubmatch(block.ReplaceAllString(document, "\n"), -1) {
		all = append(all, strings.ReplaceAll(strings.Join(strings.Fields(match[1]), " "), `\|`, "|"))
	}
	return all
}

// Of returns the commands in the blocks of a document that are in no language, or in sh. In a block with prompts only the lines with a prompt
// are commands.
func Of(page, document string) (all []Command) {
	for _, match := range block.FindAllStringSubmatch(document, -1) {
		language, text := match[2], match[3]
		if match[4] != "" {
			match[1], text = "    ", match[4]
		}
		text = regexp.MustCompile(`(?m)^`+match[1]).ReplaceAllString(text, "")
		switch language {
		case "sh":
			all = append(all, Command{Page: page, Text: strings.TrimSpace(text)})
		case "":
			all = append(all, ofBlock(page, text)...)
		}
	}
	return all
}

func ofBlock(page, text string) (all []Command) {
	prompted := strings.HasPrefix(text, "$ ") || strings.Contains(text, "\n$ ")
	open := false // the last command continues on this line
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		last := len(all) - 1
		rest, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case open:
			all[last].Text += "\n" + line
		case prompt, !prompted && programs.MatchString(line):
			all = append(all, Command{Page: page, Text: rest})
			last++
		case last >= 0:
			all[last].Output += line + "\n"
			continue
		default:
			continue
		}
		open = continues(all[last].Text)
	}
	return all
}

// continues reports whether a shell expects more lines of a command.
func continues(text string) bool {
	words := strings.Fields(text)
	return strings.HasSuffix(text, `\`) || strings.HasSuffix(text, "&&") ||
		slices.ContainsFunc(words, func(w string) bool { return w == "do" }) && !slices.ContainsFunc(words, func(w string) bool { return w == "done" })
}

// Row says of the commands of a page that begin with a text which test runs them, or why none does.
type Row struct {
	Page, Begin string
	// By is a test with its package, as in "charts TestDocumentedCommands".
	By string
	// Why is the reason why the command cannot be run in a test.
	Why string
}

// Is reports whether a command is one of a row. A beginning that ends a line is the whole command.
func (r Row) Is(c Command) bool { return r.Page == c.Page && strings.HasPrefix(c.Text+"\n", r.Begin) }

// Missing returns those of some commands that a document does not show.
func Missing(document string, typed ...string) (missing []string) {
	shown := Of("", document)
	for _, text := range typed {
		if !slices.ContainsFunc(shown, func(c Command) bool { return c.Text == text }) {
			missing = append(missing, text)
		}
	}
	return missing
}
