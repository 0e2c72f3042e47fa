package sim

import "time"

// link is the network between one client and the API server.
type link struct {
	w *world
	// name is the owner's name, for the trace.
	name string
	// cutUp swallows requests, cutDown answers and watch events.
	cutUp, cutDown int
	// lossUp and lossDown are the probabilities for each message. maxLost, unless 0, is how many answers can be lost in a row.
	lossUp, lossDown float64
	maxLost, lost    int
	// slow bounds the additional time that each direction can take.
	slow time.Duration
	// twice is the probability that a request is delivered twice, the second time late by up to late.
	twice float64
	late  time.Duration
	// lag is the probability that a read is answered from a stale cache.
	lag float64
	// outdated means that reads are answered with the state before the last acquire.
	outdated bool
	// server is the one that the request which is carried out now has reached.
	server int
	// refused means that the credentials are not accepted.
	refused bool
	// idle holds the servers of idle connections. A connection without an answer is closed with its request.
	idle []int
}

// connect returns the server that a request goes to: the one of an idle connection, else any, as a Service picks one.
func (l *link) connect() int {
	if n := len(l.idle); n > 0 {
		server := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return server
	}
	return l.w.rng.IntN(servers)
}

// answered makes a connection idle again.
func (l *link) answered(server int) {
	if len(l.idle) == 0 {
		l.idle = append(l.idle, server)
	}
}

// delay returns the time that one direction takes.
func (l *link) delay() time.Duration {
	d := l.w.between(200*time.Microsecond, 3*time.Millisecond)
	if slow := max(l.slow, l.w.api.slow); slow > 0 {
		d += l.w.between(0, slow)
	}
	return d
}

// call sends a request. The function apply runs at the server, perhaps never, late or twice. The function answer runs at the client with
// its result, with the error of a broken connection, or never.
func (l *link) call(apply func() reply, answer func(reply)) {
	w := l.w
	server := l.connect()
	applied := apply
	apply = func() reply {
		l.server = server
		return applied()
	}
	told := answer
	answer = func(r reply) {
		if r != unanswered && !r.watch { // a watch keeps its own connection
			l.answered(server)
		}
		told(r)
	}
	switch {
	case w.api.dead[server]: // silent: it neither answers nor refuses
		return
	case l.refused:
		l.say(refused, answer)
		return
	case l.cutUp > 0 || w.chance(l.lossUp):
		if w.chance(0.3) {
			l.say(unanswered, answer)
		}
		return
	}
	first, second := answer, (func(reply))(nil)
	if w.chance(l.twice) {
		if w.chance(0.5) { // the transport sent it again, and the second answer counts
			first, second = second, first
		}
		w.after(l.delay()+w.between(0, l.late), func() { l.arrive(apply, second) })
	}
	w.after(l.delay(), func() { l.arrive(apply, first) })
}

// arrive delivers the request to the server. A nil answer belongs to a second delivery, for which nobody waits.
func (l *link) arrive(apply func() reply, answer func(reply)) {
	w := l.w
	switch w.api.now() {
	case up:
		l.back(apply(), answer)
	case refusing, throttled:
		l.say(refused, answer)
	case failing:
		if w.chance(0.5) {
			apply()
		}
		l.say(unanswered, answer)
	case paused:
		w.api.held = append(w.api.held, func() {
			if w.chance(0.5) {
				l.back(apply(), answer)
			}
		})
	case blackHole:
	}
}

// back carries the answer to the client.
func (l *link) back(r reply, answer func(reply)) {
	w := l.w
	if l.cutDown > 0 || answer == nil {
		return
	}
	if w.chance(l.lossDown) && (l.maxLost == 0 || l.lost < l.maxLost && !r.watch) {
		l.lost++
		if w.chance(0.3) {
			l.say(unanswered, answer)
		}
		return
	}
	if !r.watch {
		l.lost = 0
	}
	l.say(r, answer)
}

// say delivers an answer.
func (l *link) say(r reply, answer func(reply)) {
	if answer != nil {
		l.w.after(l.delay(), func() { answer(r) })
	}
}

// heal ends every fault of the link.
func (l *link) heal() {
	*l = link{w: l.w, name: l.name}
}
