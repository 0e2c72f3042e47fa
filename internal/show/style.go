package show

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style is the layout of text: for a terminal with colours, or plain.
type Style struct {
	Color bool
	// ASCII draws only with ASCII characters, for terminals that do not use UTF-8.
	ASCII bool
	// Width is the width of the terminal in characters. 0: no terminal, and no line is wrapped.
	Width int
}

type color string

const (
	plain  color = ""
	green  color = "32"
	yellow color = "33"
	red    color = "31"
	faint  color = "2"
	bold   color = "1"
)

func (s Style) paint(c color, text string) string {
	if !s.Color || c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

var inASCII = strings.NewReplacer("├", "|", "└", "`", "│", "|", "─", "-", "●", "*", "○", "o", "→", "->", "…", "..")

// Draw converts a text of this program to the style's characters.
func (s Style) Draw(text string) string {
	if s.ASCII {
		return inASCII.Replace(text)
	}
	return text
}

// cell is some text in one colour.
type cell struct {
	text string
	color
}

func width(text string) int { return utf8.RuneCountInString(text) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Clean turns text from elsewhere into one line without control characters, because a terminal obeys them.
func Clean(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?")))
}

// columns pads the cells of rows to the width of the widest in each column, with two spaces between them.
func (s Style) columns(rows [][]cell) []string {
	var widths []int
	for _, row := range rows {
		for i := range row {
			row[i].text = s.Draw(row[i].text)
			c := row[i]
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(c.text))
		}
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var out strings.Builder
		gap := 0
		for i, c := range row {
			if widths[i] == 0 {
				continue
			}
			if c.text != "" {
				out.WriteString(strings.Repeat(" ", gap))
				out.WriteString(s.paint(c.color, c.text))
				gap = 0
			}
			gap += widths[i] - width(c.text) + 2
		}
		lines[n] = out.String()
	}
	return lines
}

// fits reports whether the rows, as columns formats them, are no wider than room.
func (s Style) fits(rows [][]cell, room int) bool {
	for _, line := range (Style{ASCII: s.ASCII}).columns(rows) {
		if width(line) > room {
			return false
		}
	}
	return true
}

// squeeze shortens the texts in one column until the rows fit into room, or the texts are as short as is useful. It cuts out the
// middle, because some clouds put the distinctive part of a node's name at the end and others at the beginning.
func (s Style) squeeze(rows [][]cell, column, room int) {
	const least = 9
	whole := make([][]rune, len(rows))
	widest := 0
	for i, row := range rows {
		whole[i] = []rune(row[column].text)
		widest = max(widest, len(whole[i]))
	}
	for most := widest - 1; most >= least && !s.fits(rows, room); most-- {
		for i, row := range rows {
			row[column].text = s.shortened(whole[i], most)
		}
	}
}

func (s Style) shortened(text []rune, most int) string {
	if len(text) <= most {
		return string(text)
	}
	gap := s.Draw("…")
	tail := (most - width(gap)) / 2
	return string(text[:most-width(gap)-tail]) + gap + string(text[len(text)-tail:])
}

// Reflow wraps the paragraphs of a text again, into lines of no more than most characters.
func Reflow(text string, most int) string {
	var all []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		all = append(all, strings.Join(wrapped(paragraph, most, 0), "\n"))
	}
	return strings.Join(all, "\n\n")
}

// wrapped breaks a text into lines of no more than most characters, between words where it can. With 0 it returns one line. All lines
// but the first are shorter by indent.
func wrapped(text string, most, indent int) []string {
	const narrowest = 20 // a narrower terminal wraps lines itself
	if most == 0 {
		return []string{text}
	}
	most = max(most, narrowest)
	var lines []string
	var line strings.Builder
	for word := range pieces(text, most-indent) {
		if line.Len() > 0 && width(line.String())+1+width(word) > most {
			if len(lines) == 0 {
				most -= indent
			}
			lines = append(lines, line.String())
			line.Reset()
		}
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(word)
	}
	return append(lines, line.String())
}

// pieces are the words of a text. Words longer than a line are split.
func pieces(text string, most int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for word := range strings.FieldsSeq(text) {
			for part := range slices.Chunk([]rune(word), most) {
				if !yield(string(part)) {
					return
				}
			}
		}
	}
}
