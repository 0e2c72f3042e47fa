package main

import "strings"

// ofRuns is true for a job that runs to completion.
const ofRuns = `self.runPolicy == 'RunToCompletion'`

// restartPolicy is an optional value: a job without a template has none.
const restartPolicy = pod + `.?restartPolicy`

// runRules check which fields can be combined with a run policy.
func runRules() []rule {
	rules := []rule{{
		at: "spec.runPolicy", cel: `self == oldSelf`,
		message: `"%s" can't replace "%s": create a job with another name, or delete this one first`,
		args:    []string{"self", "oldSelf"},
	}, {
		at: "spec", field: "ttlSecondsAfterFinished", reason: forbidden,
		cel:     `!has(self.schedule) || !has(self.ttlSecondsAfterFinished)`,
		message: `the job would be deleted before its next tick: remove it, or remove schedule`,
	}, {
		at: "spec", field: "workloadRef", reason: forbidden,
		cel: `!has(self.workloadRef) || !(` + ofRuns + `)`,
		message: `a Deployment or StatefulSet runs indefinitely, a job with runPolicy RunToCompletion does not: put the pod template into
			spec.template`,
	}, {
		at: "spec", field: "lease.onRenewFailure",
		cel: `!(` + ofRuns + `) || self.lease.onRenewFailure != 'KeepRunning'`,
		message: `"KeepRunning" is not accepted with runPolicy RunToCompletion, because two attempts of a run could run at once: set Stop, or
			remove it`,
	}, {
		at: "spec", field: "template.spec.restartPolicy",
		cel:     restartPolicy + `.orValue('') in ['', 'Always'] || ` + ofRuns,
		message: `"%s" is not accepted: set Always, or remove it, because a candidate lives through many tenures`,
		args:    []string{restartPolicy + ".value()"},
	}, {
		at: "spec", field: "template.spec.restartPolicy",
		cel: `!(` + ofRuns + `) || ` + restartPolicy + `.orValue('') in ['', 'OnFailure', 'Never']`,
		message: `"%s" is not accepted with runPolicy RunToCompletion: set OnFailure or Never, or remove it; in each case attempts
			follow as spec.backoffLimit allows`,
		args: []string{restartPolicy + ".value()"},
	}, {
		at: "spec", field: "ignoreOnExitCodes",
		cel:     `!has(self.failOnExitCodes) || !has(self.ignoreOnExitCodes) || !self.ignoreOnExitCodes.exists(code, code in self.failOnExitCodes)`,
		message: `%d is in failOnExitCodes too: remove it from one of the lists`,
		args:    []string{`self.ignoreOnExitCodes.filter(code, code in self.failOnExitCodes)[0]`},
	}}
	for _, name := range []string{"schedule", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "failOnExitCodes", "ignoreOnExitCodes"} {
		given := `has(self.` + name + `)`
		if strings.HasSuffix(name, "OnExitCodes") {
			given += ` && self.` + name + `.size() > 0`
		}
		rules = append(rules, rule{
			at: "spec", field: name, reason: forbidden, cel: `!(` + given + `) || ` + ofRuns,
			message: `valid only with runPolicy RunToCompletion, which you can set only when you create a job: remove it, or create a job with that policy`,
		})
	}
	return rules
}

// Parts of the rules for cron.
const (
	macros = `{'@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *', '@monthly': '0 0 1 * *', '@weekly': '0 0 * * 0',
		'@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@hourly': '0 * * * *'}`
	namesZone  = `(self.startsWith('TZ=') || self.startsWith('CRON_TZ='))`
	fiveFields = `five fields with one space between them (minute, hour, day of the month, the month, day of the week), like
		30 2 * * *`
)

// scheduleRules check what can be checked of cron without parsing its fields. The messages are those of schedule.Parse.
func scheduleRules() []rule {
	const at = "spec.schedule.cron"
	fields := func(cel, message string, args ...string) rule {
		return rule{at: at, cel: `self.startsWith('@') || ` + namesZone + ` || ` + cel, message: message, args: append([]string{"self"}, args...)}
	}
	return []rule{
		{
			at: at, cel: `!(self in ` + macros + `)`,
			message: `"%s" is not accepted: write %s`, args: []string{"self", macros + `[self]`},
		},
		{
			at: at, cel: `!self.startsWith('@') || self in ` + macros,
			message: `"%s" is not accepted: write ` + fiveFields, args: []string{"self"},
		},
		{
			at: at, cel: `!` + namesZone,
			message: `"%s" names a zone: write that in spec.schedule.timeZone`, args: []string{"self"},
		},
		fields(`self.split(' ').size() != 6`, `"%s" has 6 fields: write `+fiveFields+`; there are no seconds`),
		fields(`self.split(' ').size() in [5, 6]`, `"%s" has %d fields: write `+fiveFields, `self.split(' ').size()`),
		{
			at:      "spec.schedule.startingDeadline",
			cel:     `!self` + isDuration + ` || duration(self) >= duration('10s') && duration(self) <= duration('168h')`,
			message: `%s is not accepted: from 10s to 168h`, args: []string{"duration(self)"},
		},
		{
			at: "spec.schedule.leadTime", cel: `!self` + isDuration + ` || duration(self) <= duration('1h')`,
			message: `%s is not accepted: from 0s to 1h`, args: []string{"duration(self)"},
		},
		{
			at: "spec.schedule", field: "overlap", cel: `self.overlap != 'Replace' || self.catchUp != 'All'`,
			message: `"Replace" is not accepted with catchUp All, because its runs would stop each other: set Queue, or catchUp Latest`,
		},
	}
}
