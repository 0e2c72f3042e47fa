package schedule

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cron holds the five fields. Each is a set: bit n stands for the value n.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// anyDay and anyWeekday: the field is a star. If neither is, a day matches if it is in one of the two fields.
	anyDay, anyWeekday bool
	// follows: there is a star in the minute or the hour, so the schedule follows real time (Schedule.Next).
	follows bool
}

// field describes the values that a field accepts.
type field struct {
	name      string
	low, high int
	names     []string // of low and those after it
}

var (
	minuteField  = field{name: "minute", low: 0, high: 59}
	hourField    = field{name: "hour", low: 0, high: 23}
	dayField     = field{name: "day of the month", low: 1, high: 31}
	monthField   = field{name: "month", low: 1, high: 12, names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}}
	weekdayField = field{name: "day of the week", low: 0, high: 6, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}}
)

// maxCron bounds the length of the text, in bytes.
const maxCron = 1024

// macros are other implementations' abbreviations for five fields.
var macros = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// parseCron parses five fields as crontab(5) and CronJob do. It refuses texts that these two interpret differently, and schedules
// without ticks.
func parseCron(text string) (cron, error) {
	words, err := split(text)
	if err != nil {
		return cron{}, err
	}
	var sets [5]uint64
	for i, f := range []field{minuteField, hourField, dayField, monthField, weekdayField} {
		if sets[i], err = f.parse(words[i]); err != nil {
			return cron{}, fmt.Errorf("%s: %s: %w", quote(text), f.name, err)
		}
	}
	c := cron{
		minutes: sets[0], hours: sets[1], days: sets[2], months: sets[3], weekdays: sets[4],
		anyDay: isAny(words[2]), anyWeekday: isAny(words[4]),
		follows: strings.Contains(words[0]+words[1], "*"),
	}
	if err := c.check(words); err != nil {
		return cron{}, fmt.Errorf("%s: %w", quote(text), err)
	}
	return c, nil
}

func split(text string) ([]string, error) {
	const remedy = "five fields with one space between them (minute, hour, day of the month, the month, day of the week), like 30 2 * * *"
	switch {
	case len(text) > maxCron:
		return nil, fmt.Errorf("%s has %d bytes: write at most %d", quote(text), len(text), maxCron)
	case macros[text] != "":
		return nil, fmt.Errorf("%s is not accepted: write %s", quote(text), macros[text])
	case strings.HasPrefix(text, "@"):
		return nil, fmt.Errorf("%s is not accepted: write %s", quote(text), remedy)
	case strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="):
		return nil, fmt.Errorf("%s names a zone: write that in spec.schedule.timeZone", quote(text))
	}
	words := strings.Split(text, " ")
	if len(words) == len("smhdMw") {
		return nil, fmt.Errorf("%s has 6 fields: write %s; there are no seconds", quote(text), remedy)
	}
	if len(words) != len("mhdMw") {
		return nil, fmt.Errorf("%s has %d fields: write %s", quote(text), len(words), remedy)
	}
	return words, nil
}

// isAny reports whether a day field accepts every day, so that only the other day field counts.
func isAny(word string) bool { return word == "*" || word == "*/1" }

// check refuses schedules without ticks, and texts with two interpretations.
func (c cron) check(words []string) error {
	if !c.anyDay && !c.anyWeekday {
		for _, word := range []string{words[2], words[4]} {
			if strings.Contains(word, "*") {
				return fmt.Errorf("day of the month %s with day of the week %s means days in both fields for crontab(5), and days in either "+
					"field for CronJob: for days in either field, write the step with a range, such as 1-31/2", quote(words[2]), quote(words[4]))
			}
		}
	}
	if !c.anyWeekday {
		return nil // each month has every day of the week
	}
	for month := time.January; month <= time.December; month++ {
		last := time.Date(2000, month+1, 0, 0, 0, 0, 0, time.UTC).Day() // 2000 is a leap year
		if has(c.months, int(month)) && bits.TrailingZeros64(c.days) <= last {
			return nil
		}
	}
	return fmt.Errorf("day of the month %s does not exist in month %s: write a day that does", quote(words[2]), quote(words[3]))
}

// parse parses a list of values, ranges and steps.
func (f field) parse(word string) (set uint64, err error) {
	if word == "" {
		return 0, errors.New("the field is empty: write * for any value, and one space between fields")
	}
	parts := strings.Split(word, ",")
	for _, part := range parts {
		one, err := f.part(part)
		if err != nil {
			return 0, err
		}
		if isAny(part) && len(parts) > 1 {
			return 0, fmt.Errorf("%s has a star in a list: write only the star", quote(word))
		}
		set |= one
	}
	return set, nil
}

// part parses "*", "a" or "a-b", each with or without a step. "a/n" means from a to the end.
func (f field) part(part string) (set uint64, err error) {
	if part == "" {
		return 0, errors.New("a value is missing next to a comma: write a value, or remove the comma")
	}
	span, stepText, stepped := strings.Cut(part, "/")
	low, high, err := f.span(span, stepped)
	if err != nil {
		return 0, err
	}
	step := 1
	if stepped {
		if step, err = number(stepText); err != nil || step < 1 || step > f.high-f.low {
			return 0, fmt.Errorf("%s needs a step from 1 to %d after its slash: write one, or a list of values", quote(part), f.high-f.low)
		}
	}
	for value := low; value <= high; value += step {
		set |= 1 << f.normal(value)
	}
	return set, nil
}

func (f field) span(span string, stepped bool) (low, high int, err error) {
	if span == "*" {
		return f.low, f.high, nil
	}
	from, to, ranged := strings.Cut(span, "-")
	if low, err = f.value(from); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		if high, err = f.value(to); err != nil {
			return 0, 0, err
		}
	case stepped:
		high = max(low, f.high)
	default:
		high = low
	}
	if low > high {
		return 0, 0, fmt.Errorf("%s ends before it starts: write two ranges, with a comma", quote(span))
	}
	return low, high, nil
}

// value parses a number or a name. Day 7 of the week is Sunday too, so that a range can end with Sunday.
func (f field) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.low + i, nil
	}
	high := f.high
	if f.name == weekdayField.name {
		high++
	}
	n, err := number(text)
	if err == nil && n >= f.low && n <= high {
		return n, nil
	}
	names := ""
	if len(f.names) > 0 {
		names = ", or one of " + strings.Join(f.names, " ")
	}
	if text == "?" {
		names += ", or * for any"
	}
	return 0, fmt.Errorf("%s is not a value: write a number from %d to %d%s", quote(text), f.low, high, names)
}

// normal gives equal values the same number.
func (f field) normal(value int) int {
	if value > f.high {
		return f.low
	}
	return value
}

// number parses digits only, not the other forms that strconv accepts.
func number(text string) (int, error) {
	if strings.Trim(text, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.Atoi(text)
}

// quote quotes a value for a message, shortened because anybody may have written it.
func quote(text string) string {
	const most = 64
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}

func has(set uint64, value int) bool { return set&(1<<value) != 0 }

// The clock.
const (
	minuteSeconds = 60
	hourMinutes   = 60
	dayMinutes    = 24 * hourMinutes
	daySeconds    = dayMinutes * minuteSeconds
)

// after is the first matching civil minute after a civil second, or far if there is none.
func (c cron) after(civil Stamp) Stamp {
	minute := floor(civil, minuteSeconds) + 1
	day := floor(minute, dayMinutes)
	from := int(minute - day*dayMinutes)
	for day*daySeconds <= maxStamp+turnback {
		next := c.nextDay(day)
		if next > day {
			day, from = next, 0
			continue
		}
		if m, ok := c.minuteFrom(from); ok {
			return day*daySeconds + Stamp(m)*minuteSeconds
		}
		day, from = day+1, 0
	}
	return far
}

// count is the number of matching civil minutes after one civil second and not after another.
func (c cron) count(after, to Stamp) int64 {
	if to <= after {
		return 0
	}
	return c.before(to+1, after+1)
}

// before counts the matching minutes from a civil second up to, but not including, to.
func (c cron) before(to, from Stamp) (n int64) {
	firstDay, lastDay := floor(from, daySeconds), floor(to, daySeconds)
	perDay := int64(bits.OnesCount64(c.minutes)) * int64(bits.OnesCount64(c.hours))
	for day := c.nextDay(firstDay); day < lastDay; day = c.nextDay(day + 1) {
		n += perDay
	}
	if c.nextDay(firstDay) == firstDay {
		n -= c.within(from - firstDay*daySeconds)
	}
	if c.nextDay(lastDay) == lastDay {
		n += c.within(to - lastDay*daySeconds)
	}
	return n
}

// within counts the matching minutes that start in the first given seconds of a day.
func (c cron) within(seconds Stamp) int64 {
	minute := int((seconds + minuteSeconds - 1) / minuteSeconds) // the first minute that does not
	hour := minute / hourMinutes
	full := bits.OnesCount64(c.hours & (1<<hour - 1))
	n := int64(full) * int64(bits.OnesCount64(c.minutes))
	if has(c.hours, hour) {
		n += int64(bits.OnesCount64(c.minutes & (1<<(minute%hourMinutes) - 1)))
	}
	return n
}

// minuteFrom is the first matching minute of a day, starting at one.
func (c cron) minuteFrom(from int) (minute int, ok bool) {
	hour, rest := from/hourMinutes, from%hourMinutes
	if has(c.hours, hour) {
		if later := c.minutes >> rest << rest; later != 0 {
			return hour*hourMinutes + bits.TrailingZeros64(later), true
		}
	}
	later := c.hours >> (hour + 1) << (hour + 1)
	if later == 0 {
		return 0, false
	}
	return bits.TrailingZeros64(later)*hourMinutes + bits.TrailingZeros64(c.minutes), true
}

// nextDay is the first matching day, counted from 1970, that is not before one.
func (c cron) nextDay(day Stamp) Stamp {
	for day*daySeconds <= maxStamp+turnback {
		date := (day * daySeconds).Time()
		switch {
		case !has(c.months, int(date.Month())):
			day += Stamp(time.Date(date.Year(), date.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day() - date.Day() + 1)
		case !c.onDay(date):
			day++
		default:
			return day
		}
	}
	return far
}

func (c cron) onDay(date time.Time) bool {
	day, weekday := has(c.days, date.Day()), has(c.weekdays, int(date.Weekday()))
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// floor divides and rounds down.
func floor(s, by Stamp) Stamp {
	q := s / by
	if s%by < 0 {
		q--
	}
	return q
}
