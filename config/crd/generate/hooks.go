package main

var hookNames = []string{"postStart", "preStop"}

// hookRule rejects a hook that an agent cannot run.
func hookRule(name string) rule {
	hook := `c.lifecycle.` + name
	return ofGated(forbidden, `!has(c.lifecycle) || !has(`+hook+`) || !has(`+hook+`.tcpSocket)
		&& [has(`+hook+`.exec), has(`+hook+`.httpGet), has(`+hook+`.sleep)].filter(h, h).size() == 1
		&& (!has(`+hook+`.exec) || has(`+hook+`.exec.command) && `+hook+`.exec.command.size() > 0)
		&& (!has(`+hook+`.sleep) || `+hook+`.sleep.seconds >= 0 && `+hook+`.sleep.seconds <= 3600)`,
		`has a `+name+` hook that the agent cannot run: set exactly one of exec.command, httpGet, and sleep.seconds (0 to 3600)`)
}

// sleepRule rejects a pause that is longer than the time that a Pod has to stop, as Kubernetes does.
func sleepRule(name string) rule {
	hook := `c.lifecycle.` + name
	return ofGated(forbidden, `!has(c.lifecycle) || !has(`+hook+`) || !has(`+hook+`.sleep) || `+hook+`.sleep.seconds > 3600
		|| `+hook+`.sleep.seconds <= (has(`+pod+`.terminationGracePeriodSeconds) ? `+pod+`.terminationGracePeriodSeconds : 30)`,
		`has a `+name+` hook that sleeps for longer than the Pod has to stop: set sleep.seconds to at most terminationGracePeriodSeconds
		(30 by default)`)
}

// hookRules are the rules for HTTP requests of hooks, the same as for probes.
func hookRules() []rule {
	var rules []rule
	for _, name := range hookNames {
		rules = append(rules, httpGetRules(ofContainer+"lifecycle."+name)...)
		rules = append(rules, askedPort(name+" hook", "httpGet", "lifecycle", name, "httpGet"))
	}
	return rules
}
