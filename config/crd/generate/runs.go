package main

// ofRuns holds for a job that runs to completion.
const ofRuns = `self.runPolicy == 'RunToCompletion'`

// runRules are about what goes with a run policy, and what does not.
func runRules() []rule {
	rules := []rule{{
		at: "spec.runPolicy", cel: `self == oldSelf`,
		message: `"%s" can't take the place of "%s": make a job of another name, or delete this one first`,
		args:    []string{"self", "oldSelf"},
	}, {
		at: "spec", field: "ttlSecondsAfterFinished", reason: forbidden,
		cel:     `!has(self.schedule) || !has(self.ttlSecondsAfterFinished)`,
		message: `the job would be gone before its next tick: remove it, or remove schedule`,
	}, {
		at: "spec", field: "workloadRef", reason: forbidden,
		cel: `!(` + ofRuns + `) || !has(self.workloadRef)`,
		message: `a Deployment or StatefulSet runs for ever, a job of runPolicy RunToCompletion does not: put the pod template into
			spec.template`,
	}, {
		at: "spec", field: "lease.onRenewFailure",
		cel: `!(` + ofRuns + `) || self.lease.onRenewFailure != 'KeepRunning'`,
		message: `"KeepRunning" is not accepted with runPolicy RunToCompletion, since two attempts of a run could be at work: Stop,
			or nothing`,
	}, {
		at: "spec", field: "template.spec.restartPolicy",
		cel: `!(` + ofRuns + `) || !has(` + pod + `.restartPolicy) || ` + pod + `.restartPolicy in ['', 'OnFailure', 'Never']`,
		message: `"%s" is not accepted with runPolicy RunToCompletion: OnFailure, Never, or nothing, which all mean that attempts
			follow by spec.backoffLimit`,
		args: []string{pod + ".restartPolicy"},
	}}
	for _, name := range []string{"schedule", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "failOnExitCodes"} {
		given := `has(self.` + name + `)`
		if name == "failOnExitCodes" {
			given += ` && self.` + name + `.size() > 0`
		}
		rules = append(rules, rule{
			at: "spec", field: name, reason: forbidden, cel: ofRuns + ` || !(` + given + `)`,
			message: `only with runPolicy RunToCompletion, which is chosen when a job is made: remove it, or make a job that has that`,
		})
	}
	return rules
}

// Of cron's five fields.
const (
	macros = `{'@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *', '@monthly': '0 0 1 * *', '@weekly': '0 0 * * 0',
		'@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@hourly': '0 * * * *'}`
	namesZone  = `(self.startsWith('TZ=') || self.startsWith('CRON_TZ='))`
	fiveFields = `five fields with one space between them (minute, hour, day of the month, the month, day of the week), like
		30 2 * * *`
)

// scheduleRules say what can be said of cron without reading its fields, in the words of schedule.Parse.
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
			message: `"Replace" is not accepted with catchUp All, whose runs would end one another: Queue, or catchUp Latest`,
		},
	}
}
