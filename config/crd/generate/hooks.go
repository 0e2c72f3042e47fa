package main

var hookNames = []string{"postStart", "preStop"}

// hookDemands reject a hook that an agent cannot run, and a pause that is longer than the time that a Pod has to stop, as Kubernetes does.
func hookDemands() []demand {
	var all []demand
	for _, name := range hookNames {
		all = append(all, demand{
			is: ofHook(name, `!has(h.tcpSocket)
				&& [has(h.exec), has(h.httpGet), has(h.sleep)].filter(is, is).size() == 1
				&& (!has(h.exec) || h.exec.?command.orValue([]).size() > 0)
				&& (!has(h.sleep) || h.sleep.seconds >= 0 && h.sleep.seconds <= 3600)`),
			message: `has a ` + name + ` hook that the agent cannot run: set exactly one of exec.command, httpGet, and sleep.seconds (0 to 3600)`,
		}, demand{
			is: ofHook(name, `!has(h.sleep) || h.sleep.seconds > 3600 || h.sleep.seconds <= `+pod+`.?terminationGracePeriodSeconds.orValue(30)`),
			message: `has a ` + name + ` hook that sleeps for longer than the Pod has to stop: set sleep.seconds to at most
				terminationGracePeriodSeconds (30 by default)`,
		})
	}
	return all
}

// ofHook is condition for the container c's hook h, and true if there is none.
func ofHook(name, condition string) string {
	return `!has(c.lifecycle) || c.lifecycle.?` + name + `.optMap(h, ` + condition + `).orValue(true)`
}

// hookRules are the rules for HTTP requests of hooks, the same as for probes.
func hookRules() []rule {
	var rules []rule
	for _, name := range hookNames {
		rules = append(rules, httpGetRules(ofContainer+"lifecycle."+name)...)
	}
	return rules
}
