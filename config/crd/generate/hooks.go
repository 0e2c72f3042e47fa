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

// hookRules are the rules for HTTP requests of hooks, the same as for probes.
func hookRules() []rule {
	var rules []rule
	for _, name := range hookNames {
		rules = append(rules, httpGetRules(ofContainer+"lifecycle."+name)...)
		rules = append(rules, askedPort(name+" hook", "httpGet", "lifecycle", name, "httpGet"))
	}
	return rules
}
