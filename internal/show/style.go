package show

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style is how text is laid out: for a terminal with colours, or plain.
type Style struct {
	Color bool
	// ASCII draws with nothing else, for terminals of another encoding than UTF-8.
	ASCII bool
	// Width is that of the terminal, in characters; 0 for none, and then no line is broken.
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

// Draw is a text of this program's own as the style has it.
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

// Clean makes one line of a text that somebody else wrote: a terminal obeys what it is told by control characters.
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

// fits reports whether rows, as columns lays them out, are no wider than so many characters.
func (s Style) fits(rows [][]cell, room int) bool {
	for _, line := range (Style{ASCII: s.ASCII}).columns(rows) {
		if width(line) > room {
			return false
		}
	}
	return true
}

// squeeze leaves out the middles of the texts in one column, until the rows fit into so many characters or little is left of them: some
// clouds have what tells nodes apart at the end of their names, some at the beginning.
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

// Reflow breaks the paragraphs of a text anew, into lines of at most so many characters.
func Reflow(text string, most int) string {
	var all []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		all = append(all, strings.Join(wrapped(paragraph, most, 0), "\n"))
	}
	return strings.Join(all, "\n\n")
}

// wrapped breaks a text into lines of at most so many characters, between words where it can; 0 for one line. All lines but the first
// are shorter by an indent.
func wrapped(text string, most, indent int) []string {
	const narrowest = 20 // a terminal that is narrower breaks lines by itself
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

// pieces are the words of a text, those that are longer than a line in parts.
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
