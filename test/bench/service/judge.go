//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/workload/ask"
)

// facts are what was seen. All times are CLOCK_BOOTTIME of the one machine.
type facts struct {
	lives  []observe.Life // of the processes, by the sink
	asked  []ask.Asked    // by the client of the Service
	leases []leaseSeen
	behind []behindSeen
}

// leaseSeen is the Lease's token from an instant on.
type leaseSeen struct {
	at    time.Duration
	token fence.Token
}

// behindSeen is who stands behind the Service from an instant on: the pods of its ready endpoints.
type behindSeen struct {
	at   time.Duration
	pods []string
}

// A Change is what a change of process was like for a client. Times are nanoseconds.
type Change struct {
	Kind string `json:"kind"`
	From string `json:"from"` // the pods
	To   string `json:"to"`
	// Client is the time between the last answer of the old process and the first of the new one, and Kept the same for the
	// client that keeps its connection.
	Client time.Duration `json:"client"`
	Kept   time.Duration `json:"kept"`
	// Process is the time between the last write of the old process to the sink and the first of the new one.
	Process time.Duration `json:"process"`
	// Proxy is how long the client's node took to learn about a change. It counts from when the new process had written and its pod was
	// the only endpoint, to the first answer.
	Proxy time.Duration `json:"proxy"`
	// Endpoint is the time from the Lease's new token to the new pod being the only endpoint, and Empty the time without any.
	Endpoint time.Duration `json:"endpoint"`
	Empty    time.Duration `json:"empty"`
	// Lost counts the requests on new connections without an answer meanwhile, by their failure.
	Lost map[ask.Failure]int `json:"lost"`
	// Wrong counts answers of the old process to what was sent after the new one's first write, of either client.
	Wrong int `json:"wrong"`
}

// judge tells what the change from one process to the next was like.
func judge(kind string, from, to observe.Life, f facts) (Change, error) {
	c := Change{Kind: kind, From: podOf(from), To: podOf(to), Process: to.FirstStored - from.LastStored, Lost: map[ask.Failure]int{}}
	before, after := slices.Max(from.Tokens), slices.Max(to.Tokens)
	last, first, ok := gap(f.asked, before, after, false)
	keptLast, keptFirst, keptOK := gap(f.asked, before, after, true)
	if !ok || !keptOK {
		return c, fmt.Errorf("token %d → %d: one of them never answered", before, after)
	}
	c.Client, c.Kept = first-last, keptFirst-keptLast
	for _, a := range f.asked {
		if a.Failure == "" && a.Who.Token < after && a.Sent > to.First {
			c.Wrong++
		}
		if a.Failure != "" && !a.Kept && a.Sent > last && a.Sent < first {
			c.Lost[a.Failure]++
		}
	}
	held, pointed, err := followed(f, c.To, after)
	c.Endpoint, c.Proxy = max(0, pointed-held), max(0, first-max(pointed, to.FirstStored))
	c.Empty = empty(f.behind, last, max(first, keptFirst))
	return c, err
}

func podOf(l observe.Life) string {
	pod, _, _ := strings.Cut(l.Writer, "@")
	return pod
}

// gap is when the last request was sent that the process with the one token answered, and the first that the one with the other did.
func gap(asked []ask.Asked, before, after fence.Token, kept bool) (last, first time.Duration, ok bool) {
	for _, a := range asked {
		switch {
		case a.Failure != "" || a.Kept != kept:
		case a.Who.Token == before:
			last = max(last, a.Sent)
		case a.Who.Token == after && (first == 0 || a.Sent < first):
			first = a.Sent
		}
	}
	return last, first, last > 0 && first > 0
}

// followed is when the Lease had the token, and when the pod became the only endpoint, which it may have been before.
func followed(f facts, pod string, token fence.Token) (held, pointed time.Duration, err error) {
	i := slices.IndexFunc(f.leases, func(l leaseSeen) bool { return l.token == token })
	if i < 0 {
		return 0, 0, fmt.Errorf("nobody saw token %d in the Lease", token)
	}
	held = f.leases[i].at
	for i, b := range f.behind {
		ended := i+1 < len(f.behind) && f.behind[i+1].at <= held
		if !ended && slices.Equal(b.pods, []string{pod}) {
			return held, b.at, nil
		}
	}
	return held, 0, fmt.Errorf("%s never was the only endpoint", pod)
}

// empty is how much of the time between two instants there was no endpoint.
func empty(behind []behindSeen, from, to time.Duration) (sum time.Duration) {
	for i, b := range behind {
		end := to
		if i+1 < len(behind) {
			end = min(to, behind[i+1].at)
		}
		if len(b.pods) == 0 {
			sum += max(0, end-max(from, b.at))
		}
	}
	return sum
}

// An Outage is a change of process while no operator runs.
type Outage struct {
	Kind string `json:"kind"`
	// Process is the time between the last write of the old process to the sink and the first of the new one.
	Process time.Duration `json:"process"`
	Moved   bool          `json:"moved"` // to another pod
	// Watched is for how long requests were sent after the new process had begun and before an operator was started. The counts say what
	// came of them: answers of the new process, of any other, and none.
	Watched time.Duration       `json:"watched"`
	Right   int                 `json:"right"`
	Wrong   int                 `json:"wrong"`
	Lost    map[ask.Failure]int `json:"lost"`
	// Back is the time from the start of an operator to the new process's pod being the only endpoint; 0 if it was already.
	Back time.Duration `json:"back"`
}

func (o Outage) String() string {
	return fmt.Sprintf("without an operator, %s: the process was away for %v, moved %t; in the %v after that %d right answers, %d wrong, %v without; its endpoint %v after an operator was started",
		o.Kind, round(o.Process), o.Moved, round(o.Watched), o.Right, o.Wrong, o.Lost, round(o.Back))
}

// judgeOutage tells what the client saw of a process that began without an operator, until one was started.
func judgeOutage(kind string, from, to observe.Life, f facts, started time.Duration) Outage {
	o := Outage{
		Kind: kind, Process: to.FirstStored - from.LastStored, Moved: podOf(from) != podOf(to),
		Watched: started - to.FirstStored, Lost: map[ask.Failure]int{},
	}
	token := slices.Max(to.Tokens)
	if n := len(f.behind); n > 0 && slices.Equal(f.behind[n-1].pods, []string{podOf(to)}) {
		o.Back = max(0, f.behind[n-1].at-started)
	}
	for _, a := range f.asked {
		switch {
		case a.Kept || a.Sent < to.FirstStored || a.Sent >= started:
		case a.Failure != "":
			o.Lost[a.Failure]++
		case a.Who.Token == token:
			o.Right++
		default:
			o.Wrong++
		}
	}
	return o
}

// A Result is what the JSON file holds.
type Result struct {
	Changes []Change `json:"changes"`
	Outages []Outage `json:"outages"`
	// Several is how often two pods or more were seen behind the Service.
	Several int `json:"several"`
}

// follows is how soon the endpoint is promised to follow the Lease while an operator runs.
const follows = time.Second

// verdict is an error if a promise was broken. A late endpoint can be the fault of the machine. The figures show it.
func (r Result) verdict() error {
	var errs []error
	if r.Several > 0 {
		errs = append(errs, fmt.Errorf("SAFETY: %d times there were two endpoints", r.Several))
	}
	for _, c := range r.Changes {
		if c.Wrong > 0 {
			errs = append(errs, fmt.Errorf("%s from %s to %s: %d answers by a process of the past", c.Kind, c.From, c.To, c.Wrong))
		}
	}
	for _, o := range r.Outages {
		if o.Wrong > 0 {
			errs = append(errs, fmt.Errorf("without an operator: %d answers by a process of the past", o.Wrong))
		}
	}
	return errors.Join(errs...)
}
