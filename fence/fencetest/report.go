package fencetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Report sums up what the sink saw, for each resource. All times are the sink's CLOCK_BOOTTIME in nanoseconds.
type Report struct {
	Resources []ResourceReport `json:"resources"`
	// Malformed counts writes that were refused because their token or resource was missing or malformed.
	Malformed int `json:"malformed"`
}

// ResourceReport sums up one resource.
type ResourceReport struct {
	Resource fence.Resource `json:"resource"`
	// Highest is the greatest token that was accepted.
	Highest  fence.Token `json:"highest"`
	Accepted int         `json:"accepted"`
	Refused  int         `json:"refused"`
	// StaleAccepted counts stored writes whose token was lower than that of an earlier stored write. It is counted
	// from the record, not by the gate, and is zero unless the sink is unfenced or broken.
	StaleAccepted int `json:"staleAccepted"`
	// Tenures has one entry for each token, in ascending order.
	Tenures []TenureReport `json:"tenures"`
	// Changes has one entry for each step from one accepted token to a greater one.
	Changes []Change `json:"changes"`
}

// TenureReport sums up the writes with one token. A time is zero where there was no such write.
type TenureReport struct {
	Token         fence.Token   `json:"token"`
	Writers       []string      `json:"writers"` // in the order of their first write; more than one means a shared token
	Accepted      int           `json:"accepted"`
	Refused       int           `json:"refused"`
	FirstAccepted time.Duration `json:"firstAcceptedNanos,omitempty"`
	LastAccepted  time.Duration `json:"lastAcceptedNanos,omitempty"`
	FirstRefused  time.Duration `json:"firstRefusedNanos,omitempty"`
	LastRefused   time.Duration `json:"lastRefusedNanos,omitempty"`
}

// Change is a takeover as the sink saw it.
type Change struct {
	From fence.Token `json:"from"`
	To   fence.Token `json:"to"`
	// Gap is the time without a writer: from the last stored write of From to the first stored one of To.
	Gap time.Duration `json:"gapNanos"`
	// Overlap is how long From continued to write, stored or refused, after the first stored write of To, while
	// both processes were running. Zero: there was no such write.
	Overlap time.Duration `json:"overlapNanos"`
}

// Resource returns the report of one resource. It is empty if the sink has seen no write for it.
func (r Report) Resource(name fence.Resource) ResourceReport {
	for _, rr := range r.Resources {
		if rr.Resource == name {
			return rr
		}
	}
	return ResourceReport{Resource: name}
}

// Tenure returns the report of the tenure with a token. It is empty if the token was never presented.
func (r ResourceReport) Tenure(token fence.Token) TenureReport {
	for _, t := range r.Tenures {
		if t.Token == token {
			return t
		}
	}
	return TenureReport{Token: token}
}

// Summarize returns the report of attempts that are in the order of their decisions. Malformed writes are not attempts,
// so it leaves their count zero.
func Summarize(attempts []Attempt) Report {
	byResource := make(map[fence.Resource][]Attempt)
	for _, a := range attempts {
		byResource[a.Resource] = append(byResource[a.Resource], a)
	}
	report := Report{Resources: make([]ResourceReport, 0, len(byResource))}
	for resource, own := range byResource {
		report.Resources = append(report.Resources, summarizeResource(resource, own))
	}
	slices.SortFunc(report.Resources, func(a, b ResourceReport) int { return cmp.Compare(a.Resource, b.Resource) })
	return report
}

func summarizeResource(resource fence.Resource, attempts []Attempt) ResourceReport {
	report := ResourceReport{Resource: resource, Changes: []Change{}}
	tenures := make(map[fence.Token]*TenureReport)
	for _, a := range attempts {
		tenure := tenures[a.Token]
		if tenure == nil {
			tenure = &TenureReport{Token: a.Token}
			tenures[a.Token] = tenure
		}
		tenure.add(a)
		if !a.Accepted {
			report.Refused++
			continue
		}
		report.Accepted++
		switch {
		case a.Token < report.Highest:
			report.StaleAccepted++
		case a.Token > report.Highest && report.Highest != 0:
			report.Changes = append(report.Changes, Change{
				From: report.Highest, To: a.Token, Gap: a.At - tenures[report.Highest].LastAccepted,
			})
		}
		report.Highest = max(report.Highest, a.Token)
	}
	for i, c := range report.Changes {
		from, to := tenures[c.From], tenures[c.To]
		report.Changes[i].Overlap = max(0, max(from.LastAccepted, from.LastRefused)-to.FirstAccepted)
	}
	for _, tenure := range tenures {
		report.Tenures = append(report.Tenures, *tenure)
	}
	slices.SortFunc(report.Tenures, func(a, b TenureReport) int { return cmp.Compare(a.Token, b.Token) })
	return report
}

func (t *TenureReport) add(a Attempt) {
	if !slices.Contains(t.Writers, a.Writer) {
		t.Writers = append(t.Writers, a.Writer)
	}
	count, first, last := &t.Accepted, &t.FirstAccepted, &t.LastAccepted
	if !a.Accepted {
		count, first, last = &t.Refused, &t.FirstRefused, &t.LastRefused
	}
	*count++
	if *count == 1 {
		*first = a.At
	}
	*last = a.At
}
