package schedule

import (
	"compress/gzip"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	robfig "github.com/robfig/cron/v3"
)

func TestParseErrors(t *testing.T) {
	t.Parallel()
	good := Spec{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}
	for _, c := range []struct {
		change func(s *Spec)
		want   []string // the field, the value, the remedy
	}{
		{func(s *Spec) { s.Cron = "" }, []string{"spec.schedule.cron", `""`, "five fields"}},
		{func(s *Spec) { s.Cron = "30 2 * *" }, []string{"has 4 fields", "five fields"}},
		{func(s *Spec) { s.Cron = "0 30 2 * * *" }, []string{"has 6 fields", "no seconds"}},
		{func(s *Spec) { s.Cron = "30  2 * *" }, []string{"hour: the field is empty", "one space"}},
		{func(s *Spec) { s.Cron = "30 2 * * *\n" }, []string{"day of the week", "not a value"}},
		{func(s *Spec) { s.Cron = "30\t2 * * * *" }, []string{"minute", `"30\t2"`}},
		{func(s *Spec) { s.Cron = "@daily" }, []string{`"@daily"`, "write 0 0 * * *"}},
		{func(s *Spec) { s.Cron = "@every 1h" }, []string{`"@every 1h"`, "five fields"}},
		{func(s *Spec) { s.Cron = "@reboot" }, []string{`"@reboot"`, "five fields"}},
		{func(s *Spec) { s.Cron = "TZ=Asia/Tokyo 30 2 * * *" }, []string{"spec.schedule.timeZone"}},
		{func(s *Spec) { s.Cron = "CRON_TZ=" }, []string{"spec.schedule.timeZone"}},
		{func(s *Spec) { s.Cron = "60 2 * * *" }, []string{"minute", `"60"`, "0 to 59"}},
		{func(s *Spec) { s.Cron = "30 24 * * *" }, []string{"hour", `"24"`, "0 to 23"}},
		{func(s *Spec) { s.Cron = "30 2 0 * *" }, []string{"day of the month", `"0"`, "1 to 31"}},
		{func(s *Spec) { s.Cron = "30 2 * 13 *" }, []string{"month", `"13"`, "1 to 12", "jan"}},
		{func(s *Spec) { s.Cron = "30 2 * * 8" }, []string{"day of the week", `"8"`, "0 to 7", "sun"}},
		{func(s *Spec) { s.Cron = "-1 2 * * *" }, []string{"minute", "not a value"}},
		{func(s *Spec) { s.Cron = "+1 2 * * *" }, []string{"minute", `"+1"`}},
		{func(s *Spec) { s.Cron = "99999999999999999999 2 * * *" }, []string{"minute"}},
		{func(s *Spec) { s.Cron = "1-2-3 2 * * *" }, []string{`"2-3"`}},
		{func(s *Spec) { s.Cron = "*-5 2 * * *" }, []string{`"*"`}},
		{func(s *Spec) { s.Cron = "*/0 2 * * *" }, []string{"step from 1 to 59"}},
		{func(s *Spec) { s.Cron = "*/60 2 * * *" }, []string{"step from 1 to 59"}},
		{func(s *Spec) { s.Cron = "0 */9223372036854775807 * * *" }, []string{"step from 1 to 23"}},
		{func(s *Spec) { s.Cron = "*/ 2 * * *" }, []string{"step from 1 to 59"}},
		{func(s *Spec) { s.Cron = ", 2 * * *" }, []string{"next to a comma"}},
		{func(s *Spec) { s.Cron = "1,*,5 2 * * *" }, []string{"star in a list"}},
		{func(s *Spec) { s.Cron = "30 2 * * sat-sun" }, []string{`"sat-sun"`, "two ranges"}},
		{func(s *Spec) { s.Cron = "30 2 ? * *" }, []string{`"?"`, "* for any"}},
		{func(s *Spec) { s.Cron = "30 2 L * *" }, []string{`"L"`}},
		{func(s *Spec) { s.Cron = "30 2 */2 * 1" }, []string{"crontab(5)", "CronJob", "1-31/2"}},
		{func(s *Spec) { s.Cron = "30 2 1 * */2" }, []string{"crontab(5)", "CronJob"}},
		{func(s *Spec) { s.Cron = "0 0 30 2 *" }, []string{`"30"`, `"2"`, "does not exist"}},
		{func(s *Spec) { s.Cron = "0 0 31 4,6,sep,11 *" }, []string{"does not exist"}},
		{func(s *Spec) { s.Cron = strings.Repeat("1,", 600) + "1 2 * * *" }, []string{"bytes"}},
		{func(s *Spec) { s.TimeZone = "europe/berlin" }, []string{"spec.schedule.timeZone", `"europe/berlin"`, "write Europe/Berlin"}},
		{func(s *Spec) { s.TimeZone = "America/New York" }, []string{"write America/New_York"}},
		{func(s *Spec) { s.TimeZone = "Local" }, []string{`"Local"`, "IANA"}},
		{func(s *Spec) { s.TimeZone = "UTC+2" }, []string{"IANA"}},
		{func(s *Spec) { s.TimeZone = "../../etc/passwd" }, []string{"IANA"}},
		{func(s *Spec) { s.TimeZone = "Europe/" }, []string{"IANA"}},
		{func(s *Spec) { s.StartingDeadline = time.Second }, []string{"spec.schedule.startingDeadline", "1s", "10s"}},
		{func(s *Spec) { s.StartingDeadline = -1 << 63 }, []string{"spec.schedule.startingDeadline", "168h"}},
		{func(s *Spec) { s.StartingDeadline = 1<<63 - 1 }, []string{"spec.schedule.startingDeadline", "168h"}},
		{func(s *Spec) { s.CatchUp = "latest" }, []string{"spec.schedule.catchUp", `"latest"`, "Latest"}},
		{func(s *Spec) { s.Overlap = "Allow" }, []string{"spec.schedule.overlap", `"Allow"`, "Queue"}},
		{func(s *Spec) { s.CatchUp, s.Overlap = CatchUpAll, OverlapReplace }, []string{"spec.schedule.overlap", "Replace", "Queue"}},
	} {
		spec := good
		c.change(&spec)
		_, err := Parse(spec)
		if err == nil {
			t.Errorf("%+v is accepted", spec)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v; %q is missing", spec, err, want)
			}
		}
	}
}

func TestParseReadsFields(t *testing.T) {
	t.Parallel()
	for text, same := range map[string]string{
		"0 0 * * 7":                   "0 0 * * 0",
		"0 0 * * SUN":                 "0 0 * * 0",
		"0 0 * * 5-7":                 "0 0 * * 0,5,6",
		"0 0 * * mon-Fri":             "0 0 * * 1,2,3,4,5",
		"0 0 1 jan,JUL *":             "0 0 1 1,7 *",
		"0 0 1 oct-dec *":             "0 0 1 10,11,12 *",
		"50/3 0 * * *":                "50,53,56,59 0 * * *",
		"0 0 * * 4/2":                 "0 0 * * 4,6",
		"10-20/5 0 * * *":             "10,15,20 0 * * *",
		"05 09 * * *":                 "5 9 * * *",
		"0 0 */1 * *":                 "0 0 * * *",
		"0 0 29 2 *":                  "0 0 29 feb *",
		"0 0 30 2,3 *":                "0 0 30 feb-mar *",
		"0 0 30 2 1":                  "0 0 30 2 mon", // any Monday of February
		"59 23 31 12 *":               "59 23 31 dec *",
		"0,0,0 0 * * *":               "0 0 * * *",
		"0 0 1-31/2 * 1":              "0 0 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * 1",
		"*/59 0 * * *":                "*/59 0 * * 0-6/1",
		"0 0 " + "1-31" + " " + "* *": "0 0 1/1 * *",
	} {
		a, err := parseCron(text)
		if err != nil {
			t.Error(err)
			continue
		}
		b, err := parseCron(same)
		if err != nil {
			t.Error(err)
			continue
		}
		a.anyDay, a.anyWeekday = a.anyDay || b.anyDay, a.anyWeekday || b.anyWeekday
		b.anyDay, b.anyWeekday = a.anyDay, a.anyWeekday
		if a != b {
			t.Errorf("%q is %+v, %q is %+v", text, a, same, b)
		}
	}
}

// cronJob is CronJob's parser.
var cronJob = robfig.NewParser(robfig.Minute | robfig.Hour | robfig.Dom | robfig.Month | robfig.Dow)

// CronJob accepts every accepted text and gives it the same meaning, except for day 7 of the week, which CronJob refuses.
func FuzzCronMatchesCronJob(f *testing.F) {
	for _, seed := range []string{
		"30 2 * * *", "*/15 0-23/2 1,15 jan-mar mon", "0 0 13 * 5", "0 0 */2 * *", "5/7 * * * *", "0 0 29 2 *", "0 0 1-31/3 * 1", "1,2,3 4 5 6 0",
		"* * * * ?", "0 0 * * 7", "@daily", "TZ=Europe/Berlin 0 0 * * *", ", , , , ,", "*-3 * * * *", "0 0 5/1 * 3/1", "0 0 */1 * 1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCron(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
				t.Errorf("not one line: %v", err)
			}
			return
		}
		if next := c.after(0); next >= far || next > 9*366*daySeconds {
			t.Errorf("%q is accepted and comes at %d", text, next)
		}
		if strings.Contains(strings.Split(text, " ")[4], "7") {
			return
		}
		parsed, err := cronJob.Parse(text)
		if err != nil {
			t.Fatalf("%q is accepted, by CronJob not: %v", text, err)
		}
		theirs, ok := parsed.(*robfig.SpecSchedule)
		if !ok {
			t.Fatalf("%q is a %T", text, parsed)
		}
		const star = 1 << 63
		if got, want := [5]uint64{c.minutes, c.hours, c.days, c.months, c.weekdays},
			[5]uint64{theirs.Minute &^ star, theirs.Hour &^ star, theirs.Dom &^ star, theirs.Month &^ star, theirs.Dow &^ star}; got != want {
			t.Errorf("%q is %x, for CronJob %x", text, got, want)
		}
		if got, want := c.anyDay || c.anyWeekday, theirs.Dom&star != 0 || theirs.Dow&star != 0; got != want {
			t.Errorf("%q has a day in both fields: %v, for CronJob %v", text, got, want)
		}
	})
}

// The tables are Go's own, and all of them can be read.
func TestZonesMatchGo(t *testing.T) {
	t.Parallel()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	zip, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	here, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if string(here) != string(zip) {
		t.Error("zones.zip.gz is not the zones of this Go: go generate ./internal/schedule")
	}
	names := map[string]bool{}
	if err := walk(func(name string, data []byte) bool {
		names[name] = true
		if _, err := time.LoadLocationFromTZData(name, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Etc/UTC", "UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Apia"} {
		if !names[name] {
			t.Errorf("%s is missing of %d: %s", name, len(names), slices.Sorted(maps.Keys(names)))
		}
	}
}
