package rivals

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/tier"
)

// Options are those of a test that has crowds write.
type Options struct {
	each *time.Duration
	file *string
}

// How long each crowd writes: in the deep tier long enough for what is rare.
const (
	sample = 500 * time.Millisecond
	deep   = time.Minute
)

func usual() time.Duration {
	if tier.IsDeep() {
		return deep
	}
	return sample
}

// Flags defines them, for the package whose variable they are.
func Flags() Options {
	return Options{
		each: flag.Duration("crowd", usual(), "how long each crowd of 8 tenures writes: one to one resource, one to 1000"),
		file: flag.String("figures", "", "for as long again, measure what the fences cost, and add the figures to this file"),
	}
}

// Test has a crowd write to one resource, and one to 1000.
func (o Options) Test(t *testing.T, s Subject) {
	t.Helper()
	for _, resources := range []int{1, 1000} {
		t.Run(fmt.Sprint(resources), func(t *testing.T) {
			f, err := Run(context.WithoutCancel(t.Context()), s, resources, *o.each, *o.file != "")
			if err != nil {
				t.Error(err)
			}
			t.Logf("%+v", f)
			if *o.file == "" {
				return
			}
			if err := f.addTo(*o.file); err != nil {
				t.Fatal(err)
			}
			fmt.Println(f)
		})
	}
}

// Header is that of the table whose rows Figures print as.
const Header = "| sink | resources | with 8 tenures: accepted, refused | deadlocks | unfenced writes/s | fenced | time of a fenced write |\n|---|---|---|---|---|---|---|"

func (f Figures) String() string {
	return fmt.Sprintf("| %s | %d | %d, %d | %d | %.0f | %.0f | × %.2f |", f.Sink, f.Resources, f.Accepted, f.Refused, f.Deadlocks, f.Unfenced, f.Fenced, f.Ratio)
}

// addTo adds the figures to those of other sinks in a file, in the place of earlier ones.
func (f Figures) addTo(file string) error {
	var rows []Figures
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", file, err)
	}
	rows = append(slices.DeleteFunc(rows, func(r Figures) bool { return r.Sink == f.Sink && r.Resources == f.Resources }), f)
	if text, err = json.MarshalIndent(rows, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
