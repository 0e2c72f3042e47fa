package main

import (
	"maps"
	"strings"
)

// probeNames are the fields of a container that hold a probe.
var probeNames = []string{"startupProbe", "livenessProbe", "readinessProbe"}

const ofContainer = "spec.template.spec.containers[]."

// probeBounds are limits that pods have too, so they apply to every container.
func probeBounds() map[string]map[string]any {
	found := map[string]map[string]any{
		ofContainer + "ports":        {"maxItems": 1024},
		ofContainer + "ports[].name": {"maxLength": 63},
	}
	for _, name := range probeNames {
		at := ofContainer + name + "."
		for _, number := range []string{"initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"} {
			found[at+number] = map[string]any{"minimum": 0}
		}
		if name != "readinessProbe" {
			found[at+"successThreshold"] = map[string]any{"minimum": 0, "maximum": 1}
		}
		maps.Copy(found, map[string]map[string]any{
			at + "terminationGracePeriodSeconds": {"minimum": 1},
			at + "grpc.port":                     {"minimum": 1, "maximum": 65535},
			at + "grpc.mode":                     {"maxLength": 64},
		})
		maps.Copy(found, httpGetBounds(at))
	}
	for _, name := range hookNames {
		maps.Copy(found, httpGetBounds(ofContainer+"lifecycle."+name+"."))
	}
	return found
}

func httpGetBounds(at string) map[string]map[string]any {
	return map[string]map[string]any{
		at + "httpGet.scheme":             {"maxLength": 64},
		at + "httpGet.protocol":           {"maxLength": 64},
		at + "httpGet.httpHeaders":        {"maxItems": 64},
		at + "httpGet.httpHeaders[].name": {"maxLength": 256},
	}
}

// httpGetRules are the rules for an HTTP request, except for its port.
func httpGetRules(at string) []rule {
	return []rule{{
		at: at, cel: `!has(self.httpGet) || !has(self.httpGet.scheme) || self.httpGet.scheme in ['', 'HTTP', 'HTTPS']`,
		message: `httpGet.scheme is neither HTTP nor HTTPS`,
	}, {
		at: at, cel: `!has(self.httpGet) || !has(self.httpGet.protocol) || self.httpGet.protocol == 'HTTP1'
				|| self.httpGet.protocol == 'HTTP2' && !(has(self.httpGet.scheme) && self.httpGet.scheme == 'HTTPS')`,
		message: `httpGet.protocol is neither HTTP1 nor, with scheme HTTP, HTTP2`,
	}, {
		at: at, cel: `!has(self.httpGet) || !has(self.httpGet.protocol) || self.httpGet.protocol != 'HTTP2'
				|| !has(self.httpGet.host) || self.httpGet.host == ''`,
		message: `httpGet.host is set with protocol HTTP2, which allows no other host than the Pod: remove host`,
	}, {
		at: at, cel: `!has(self.httpGet) || !has(self.httpGet.httpHeaders)
				|| self.httpGet.httpHeaders.all(h, h.name.matches('^[-A-Za-z0-9]+$'))`,
		message: `httpGet.httpHeaders has an invalid name: use letters, digits and - only`,
	}}
}

// probeRules are the rules of pods, for every container: the gated container's probes are in no pod, so no API server checks them there.
// For the gated container only, the rules also check that the names of its ports are known, because a kubelet notices an unknown name only
// when it makes the request.
func probeRules() []rule {
	var rules []rule
	for _, name := range probeNames {
		with := func(cel, message string, args ...string) {
			rules = append(rules, rule{at: ofContainer + name, cel: cel, message: message, args: args})
		}
		const ways = `[has(self.exec), has(self.httpGet), has(self.tcpSocket), has(self.grpc)].filter(h, h).size()`
		with(ways+` == 1`, `%d of exec, httpGet, tcpSocket and grpc are set: set one of them`, ways)
		with(`!has(self.exec) || has(self.exec.command) && self.exec.command.size() > 0`, `exec has no command: set exec.command`)
		with(`!has(self.grpc) || !has(self.grpc.mode) || self.grpc.mode in ['Plaintext', 'TLS']`, `grpc.mode is neither Plaintext nor TLS`)
		rules = append(rules, httpGetRules(ofContainer+name)...)
	}
	return append(rules, rule{
		at: ofContainer + "readinessProbe", cel: `!has(self.terminationGracePeriodSeconds)`,
		message: `terminationGracePeriodSeconds has no effect on a readiness probe, which ends nothing: remove it`,
	})
}

// askedPorts checks the ports of the requests to the gated container.
func askedPorts() rule {
	valid := func(at string) string {
		return `(!has(` + at + `) || [` + at + `.port].all(port, type(port) == int ? int(port) >= 1 && int(port) <= 65535
			: has(c.ports) && c.ports.exists(q, has(q.name) && q.name != '' && q.name == string(port)
				&& q.containerPort >= 1 && q.containerPort <= 65535)))`
	}
	var all, wrong []string
	ask := func(absent, at string, ways ...string) {
		var each []string
		for _, way := range ways {
			each = append(each, valid(`asks.`+way))
			field := at + `.` + way
			wrong = append(wrong, containers+`.exists(c, `+isGated+` && !(`+absent+valid(field)+`)) ? ', in `+strings.TrimPrefix(field, "c.")+`.port' : ''`)
		}
		all = append(all, `(`+absent+`[`+at+`].all(asks, `+strings.Join(each, " && ")+`))`)
	}
	for _, name := range probeNames {
		ask(`!has(c.`+name+`) || `, `c.`+name, "tcpSocket", "httpGet")
	}
	for _, name := range hookNames {
		ask(`!has(c.lifecycle) || !has(c.lifecycle.`+name+`) || `, `c.lifecycle.`+name, "httpGet")
	}
	return ofGated(strings.Join(all, " && "), `asks for a port that is neither a number from 1 to 65535 nor the name of one of its ports with such a
		number`+strings.Repeat("%s", len(wrong))+`: add that name to ports, or set a number there`, wrong...)
}
