package v1alpha1

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// runs returns a change to a job that runs to completion.
func runs(change func(*SingletonJobSpec)) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.RunPolicy = RunPolicyRunToCompletion
		change(&job.Spec)
	}
}

// scheduled returns a change to a job with a schedule.
func scheduled(change func(*Schedule)) func(*SingletonJob) {
	return runs(func(spec *SingletonJobSpec) {
		spec.Schedule = &Schedule{Cron: "30 2 * * *"}
		change(spec.Schedule)
	})
}

func cron(text string) func(*SingletonJob) { return scheduled(func(s *Schedule) { s.Cron = text }) }

func startingDeadline(d time.Duration) func(*SingletonJob) {
	return scheduled(func(s *Schedule) { s.StartingDeadline.Duration = d })
}

func leadTime(d time.Duration) func(*SingletonJob) {
	return scheduled(func(s *Schedule) { s.LeadTime = &metav1.Duration{Duration: d} })
}

func restartPolicy(policy corev1.RestartPolicy) func(*SingletonJob) {
	return runs(func(spec *SingletonJobSpec) { spec.Template.Spec.RestartPolicy = policy })
}

// continuous sets a field that only runs have in a job that has no runs.
func continuous(change func(*SingletonJobSpec)) func(*SingletonJob) {
	return func(job *SingletonJob) { change(&job.Spec) }
}

const (
	fiveFields = "write five fields with one space between them (minute, hour, day of the month, the month, day of the week), like 30 2 * * *"
	inCron     = "spec.schedule.cron"
	inRestarts = "spec.template.spec.restartPolicy"
	atLeast0   = "should be greater than or equal to 0"
	atLeast1   = "should be greater than or equal to 1"
)

var runCases = map[string]validationCase{
	"run once": {change: runs(func(*SingletonJobSpec) {})},
	"run once, with it all": {change: runs(func(spec *SingletonJobSpec) {
		spec.BackoffLimit, spec.ActiveDeadlineSeconds = new(int32(0)), new(MaxActiveDeadlineSeconds)
		spec.TTLSecondsAfterFinished, spec.FailOnExitCodes, spec.IgnoreOnExitCodes = new(int32(0)), []int32{1, 255}, []int32{2, 254}
	})},
	"run once, as Jobs have it":      {change: restartPolicy(corev1.RestartPolicyNever)},
	"run once, as Jobs have it, too": {change: restartPolicy(corev1.RestartPolicyOnFailure)},
	"run once, restarted always": {change: restartPolicy(corev1.RestartPolicyAlways), want: invalid(inRestarts, `"Always" is not accepted with `+
		"runPolicy RunToCompletion: set OnFailure or Never, or remove it; in each case attempts follow as spec.backoffLimit allows")},
	"run twice": {
		change: func(job *SingletonJob) { job.Spec.RunPolicy = "Twice" },
		want:   []problem{{field.ErrorTypeNotSupported, "spec.runPolicy", `supported values: "Continuous", "RunToCompletion"`}},
	},
	"run policy written out":  {from: func(*SingletonJob) {}, change: continuous(func(spec *SingletonJobSpec) { spec.RunPolicy = RunPolicyContinuous })},
	"run policy as it was":    {from: runs(func(*SingletonJobSpec) {}), change: cron("0 0 * * *")},
	"run policy changed":      {from: func(*SingletonJob) {}, change: runs(func(*SingletonJobSpec) {}), want: invalid("spec.runPolicy", `"RunToCompletion" can't replace "Continuous": create a job with another name, or delete this one first`)},
	"run policy changed back": {from: runs(func(*SingletonJobSpec) {}), change: func(*SingletonJob) {}, want: invalid("spec.runPolicy", `"Continuous" can't replace "RunToCompletion": create a job with another name, or delete this one first`)},
	"schedule without runs":   {change: continuous(func(spec *SingletonJobSpec) { spec.Schedule = &Schedule{Cron: "0 0 * * *"} }), want: forbidden("spec.schedule", onlyOfRuns)},
	"backoffLimit, no runs":   {change: continuous(func(spec *SingletonJobSpec) { spec.BackoffLimit = new(int32(6)) }), want: forbidden("spec.backoffLimit", onlyOfRuns)},
	"deadline without runs":   {change: continuous(func(spec *SingletonJobSpec) { spec.ActiveDeadlineSeconds = new(int64(1)) }), want: forbidden("spec.activeDeadlineSeconds", onlyOfRuns)},
	"ttl without runs":        {change: continuous(func(spec *SingletonJobSpec) { spec.TTLSecondsAfterFinished = new(int32(1)) }), want: forbidden("spec.ttlSecondsAfterFinished", onlyOfRuns)},
	"exit codes without runs": {change: continuous(func(spec *SingletonJobSpec) { spec.FailOnExitCodes = []int32{1} }), want: forbidden("spec.failOnExitCodes", onlyOfRuns)},
	"ignored without runs":    {change: continuous(func(spec *SingletonJobSpec) { spec.IgnoreOnExitCodes = []int32{1} }), want: forbidden("spec.ignoreOnExitCodes", onlyOfRuns)},
	"success is ignored":      {change: runs(func(spec *SingletonJobSpec) { spec.IgnoreOnExitCodes = []int32{0} }), want: invalid("spec.ignoreOnExitCodes[0]", atLeast1)},
	"ignored exit code 256":   {change: runs(func(spec *SingletonJobSpec) { spec.IgnoreOnExitCodes = []int32{1, 256} }), want: invalid("spec.ignoreOnExitCodes[1]", "should be less than or equal to 255")},
	"ignored twice":           {change: runs(func(spec *SingletonJobSpec) { spec.IgnoreOnExitCodes = []int32{4, 4} }), want: []problem{{field.ErrorTypeDuplicate, "spec.ignoreOnExitCodes[1]", ""}}},
	"failed and ignored": {
		change: runs(func(spec *SingletonJobSpec) {
			spec.FailOnExitCodes, spec.IgnoreOnExitCodes = []int32{1, 3}, []int32{2, 3}
		}),
		want: invalid("spec.ignoreOnExitCodes", "3 is in failOnExitCodes too: remove it from one of the lists"),
	},
	"backoffLimit 100":        {change: runs(func(spec *SingletonJobSpec) { spec.BackoffLimit = new(int32(100)) })},
	"backoffLimit 101":        {change: runs(func(spec *SingletonJobSpec) { spec.BackoffLimit = new(int32(101)) }), want: invalid("spec.backoffLimit", "should be less than or equal to 100")},
	"backoffLimit -1":         {change: runs(func(spec *SingletonJobSpec) { spec.BackoffLimit = new(int32(-1)) }), want: invalid("spec.backoffLimit", atLeast0)},
	"deadline of no seconds":  {change: runs(func(spec *SingletonJobSpec) { spec.ActiveDeadlineSeconds = new(int64(0)) }), want: invalid("spec.activeDeadlineSeconds", atLeast1)},
	"deadline of over a year": {change: runs(func(spec *SingletonJobSpec) { spec.ActiveDeadlineSeconds = new(int64(31536001)) }), want: invalid("spec.activeDeadlineSeconds", "should be less than or equal to 31536000")},
	"ttl before the end":      {change: runs(func(spec *SingletonJobSpec) { spec.TTLSecondsAfterFinished = new(int32(-1)) }), want: invalid("spec.ttlSecondsAfterFinished", atLeast0)},
	"success is a failure":    {change: runs(func(spec *SingletonJobSpec) { spec.FailOnExitCodes = []int32{1, 0} }), want: invalid("spec.failOnExitCodes[1]", atLeast1)},
	"exit code 256":           {change: runs(func(spec *SingletonJobSpec) { spec.FailOnExitCodes = []int32{256} }), want: invalid("spec.failOnExitCodes[0]", "should be less than or equal to 255")},
	"an exit code twice":      {change: runs(func(spec *SingletonJobSpec) { spec.FailOnExitCodes = []int32{3, 4, 3} }), want: []problem{{field.ErrorTypeDuplicate, "spec.failOnExitCodes[2]", ""}}},
	"ttl beside a schedule": {
		change: runs(func(spec *SingletonJobSpec) {
			spec.Schedule, spec.TTLSecondsAfterFinished = &Schedule{Cron: "0 0 * * *"}, new(int32(1))
		}),
		want: forbidden("spec.ttlSecondsAfterFinished", noTicks),
	},
	"runs of a workload": {
		change: runs(func(spec *SingletonJobSpec) {
			spec.Template, spec.WorkloadRef = corev1.PodTemplateSpec{}, &WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, "web"}
		}),
		want: forbidden("spec.workloadRef", notOfRuns),
	},
	"runs that keep running": {
		change: runs(func(spec *SingletonJobSpec) { spec.Lease.OnRenewFailure = OnRenewFailureKeepRunning }),
		want: invalid("spec.lease.onRenewFailure", `"KeepRunning" is not accepted with runPolicy RunToCompletion, because two attempts of a run could `+
			"run at once: set Stop, or remove it"),
	},

	"schedule": {change: scheduled(func(*Schedule) {})},
	"schedule, with it all": {change: scheduled(func(s *Schedule) {
		*s = Schedule{
			Cron: "*/5 1-3,5 1 jan-mar sun", TimeZone: "Europe/Berlin", StartingDeadline: metav1.Duration{Duration: 10 * time.Second}, CatchUp: "All",
			Overlap: "Queue", Standby: StandbyWarm, LeadTime: &metav1.Duration{Duration: time.Hour},
		}
	})},
	"schedule exchanged":        {from: cron("0 0 * * *"), change: cron("0 1 * * *")},
	"schedule taken away":       {from: cron("0 0 * * *"), change: runs(func(*SingletonJobSpec) {})},
	"cron of four fields":       {change: cron("0 0 * *"), want: invalid(inCron, `"0 0 * *" has 4 fields: `+fiveFields)},
	"cron with seconds":         {change: cron("0 30 2 * * *"), want: invalid(inCron, `"0 30 2 * * *" has 6 fields: `+fiveFields+"; there are no seconds")},
	"cron with two spaces":      {change: cron("30 2  * * *"), want: invalid(inCron, `"30 2  * * *" has 6 fields: `+fiveFields+"; there are no seconds")},
	"cron of nothing":           {change: cron(""), want: invalid(inCron, `"" has 1 fields: `+fiveFields)},
	"cron, a macro":             {change: cron("@daily"), want: invalid(inCron, `"@daily" is not accepted: write 0 0 * * *`)},
	"cron, a longer macro":      {change: cron("@annually"), want: invalid(inCron, `"@annually" is not accepted: write 0 0 1 1 *`)},
	"cron, an interval":         {change: cron("@every 1h"), want: invalid(inCron, `"@every 1h" is not accepted: `+fiveFields)},
	"cron with a zone":          {change: cron("TZ=UTC 30 2 * * *"), want: invalid(inCron, `"TZ=UTC 30 2 * * *" names a zone: write that in spec.schedule.timeZone`)},
	"cron with a zone, CronJob": {change: cron("CRON_TZ=UTC 30 2 * * *"), want: invalid(inCron, `"CRON_TZ=UTC 30 2 * * *" names a zone: write that in spec.schedule.timeZone`)},
	"cron too long":             {change: cron(strings.Repeat("0,", 128) + "0 0 * * *"), want: []problem{{field.ErrorTypeTooLong, inCron, "may not be more than 256 bytes"}}},
	"zone too long": {
		change: scheduled(func(s *Schedule) { s.TimeZone = strings.Repeat("x", 65) }),
		want:   []problem{{field.ErrorTypeTooLong, "spec.schedule.timeZone", "may not be more than 64 bytes"}},
	},
	"shortest startingDeadline":  {change: startingDeadline(10 * time.Second)},
	"longest startingDeadline":   {change: startingDeadline(168 * time.Hour)},
	"startingDeadline too short": {change: startingDeadline(9999 * ms), want: invalid("spec.schedule.startingDeadline", "9.999s is not accepted: from 10s to 168h")},
	"startingDeadline too long":  {change: startingDeadline(168*time.Hour + time.Second), want: invalid("spec.schedule.startingDeadline", "604801s is not accepted: from 10s to 168h")},
	"no leadTime":                {change: leadTime(0)},
	"leadTime too long":          {change: leadTime(time.Hour + time.Second), want: invalid("spec.schedule.leadTime", "3601s is not accepted: from 0s to 1h")},
	"Replace with Latest":        {change: scheduled(func(s *Schedule) { s.Overlap = "Replace" })},
	"Replace with All": {
		change: scheduled(func(s *Schedule) { s.Overlap, s.CatchUp = "Replace", "All" }),
		want:   invalid("spec.schedule.overlap", `"Replace" is not accepted with catchUp All, because its runs would stop each other: set Queue, or catchUp Latest`),
	},
	"words of CronJob": {
		change: scheduled(func(s *Schedule) { s.CatchUp, s.Overlap, s.Standby = "Newest", "Forbid", "Cold" }),
		want: []problem{
			{field.ErrorTypeNotSupported, "spec.schedule.catchUp", `supported values: "Skip", "Latest", "All"`},
			{field.ErrorTypeNotSupported, "spec.schedule.overlap", `supported values: "Skip", "Queue", "Replace"`},
			{field.ErrorTypeNotSupported, "spec.schedule.standby", `supported values: "OnDemand", "Warm"`},
		},
	},
}

// operatorCases are rejected only by the operator, because no CRD rule knows time zones, parses a list of ranges, or splits a long text.
var operatorCases = map[string]validationCase{
	"Go's settings, one that it does not know": {
		change: variables("GODEBUG", "gctrace=1,fips140=1"),
		want: forbidden(inContainers, `the gated container "app" sets GODEBUG to "fips140=1" in env, but no Go program, including the agent, starts with that value: `+
			"write fips140=off, on, only or debug"),
	},
	"minute 60":        {change: cron("60 2 * * *"), want: invalid(inCron, `"60 2 * * *": minute: "60" is not a value: write a number from 0 to 59`)},
	"30 February":      {change: cron("0 0 30 2 *"), want: invalid(inCron, `"0 0 30 2 *": day of the month "30" does not exist in month "2": write a day that does`)},
	"a zone unknown":   {change: scheduled(func(s *Schedule) { s.TimeZone = "Mars" }), want: invalid("spec.schedule.timeZone", `"Mars" is not a time zone: write a name from the IANA database, such as Europe/Berlin, or omit it for Etc/UTC`)},
	"a zone misspelt":  {change: scheduled(func(s *Schedule) { s.TimeZone = "europe/berlin" }), want: invalid("spec.schedule.timeZone", `"europe/berlin" is not a time zone: write Europe/Berlin`)},
	"before the Epoch": {change: startingDeadline(-time.Second), want: invalid("spec.schedule.startingDeadline", "-1s is not accepted: from 10s to 168h")},
	"after the tick":   {change: leadTime(-time.Second), want: invalid("spec.schedule.leadTime", "-1s is not accepted: from 0s to 1h")},
}
