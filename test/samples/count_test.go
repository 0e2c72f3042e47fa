package samples

import (
	"testing"
	"time"
)

func at(second float64) time.Time { return time.Unix(0, int64(second*1e9)) }

// units are events, one a second.
func units(names ...string) (events []Event) {
	for i, name := range names {
		events = append(events, Event{At: at(float64(i)), Unit: name, Writer: name})
	}
	return events
}

func writers(names ...string) []Event {
	events := units(names...)
	for i := range events {
		events[i].Unit = ""
	}
	return events
}

func TestCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events   []Event
		expected []string
		want     Sum
	}{
		"nothing":                      {nil, nil, Sum{}},
		"nothing, though expected":     {nil, []string{"a"}, Sum{Lost: 1}},
		"each once":                    {units("a", "b"), []string{"a", "b"}, Sum{Done: 2}},
		"one twice":                    {units("a", "b", "a"), []string{"a", "b"}, Sum{Done: 2, Twice: 1}},
		"one three times":              {units("a", "a", "a"), []string{"a"}, Sum{Done: 1, Twice: 2}},
		"one lost":                     {units("a", "c"), []string{"a", "b", "c"}, Sum{Done: 2, Lost: 1}},
		"what nobody expected":         {units("a", "b"), []string{"a"}, Sum{Done: 2}},
		"one writer":                   {writers("x", "x", "x"), nil, Sum{Done: 3}},
		"one writer after another":     {writers("x", "x", "y", "y", "z"), nil, Sum{Done: 5}},
		"a writer returns":             {writers("x", "y", "x"), nil, Sum{Done: 3, Twice: 1}},
		"two in turns":                 {writers("x", "y", "x", "y", "x"), nil, Sum{Done: 5, Twice: 3}},
		"a writer returns and stays":   {writers("x", "y", "x", "x"), nil, Sum{Done: 4, Twice: 1}},
		"the order is that of time":    {append(writers("x", "x", "y"), Event{At: at(0.5), Writer: "x"}), nil, Sum{Done: 4}},
		"the first writer has no name": {writers("", "", "y"), nil, Sum{Done: 3}},
	} {
		if got := Count(c.events, c.expected); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestGap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events     []float64
		fault, end float64
		want       time.Duration
	}{
		"nothing happens":            {nil, 3, 10, 7 * time.Second},
		"nothing after the fault":    {[]float64{1, 2}, 3, 10, 8 * time.Second},
		"it goes on":                 {[]float64{1, 2, 3, 4, 5}, 2.5, 5, time.Second},
		"from the last before it":    {[]float64{1, 2, 8, 9}, 2.5, 9, 6 * time.Second},
		"a longer gap before it":     {[]float64{1, 8, 9, 10}, 8.5, 10, time.Second},
		"a longer gap after it":      {[]float64{1, 2, 3, 20}, 1.5, 3.5, time.Second},
		"the second gap is longer":   {[]float64{1, 3, 7, 8}, 1.5, 8, 4 * time.Second},
		"still missing at the end":   {[]float64{1, 2, 3}, 1.5, 30, 27 * time.Second},
		"in another order":           {[]float64{9, 8, 2, 1}, 2.5, 9, 6 * time.Second},
		"one at the time of a fault": {[]float64{2, 5}, 2, 5, 3 * time.Second},
	} {
		var events []Event
		for _, second := range c.events {
			events = append(events, Event{At: at(second)})
		}
		if got := Gap(events, at(c.fault), at(c.end)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
