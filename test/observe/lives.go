package observe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// Safety begins what is said of every violation of the promise that one process acts: two at once, a token that serves twice, a stale
// write that was stored. The gate never forgives a failed test that says it.
const Safety = "SAFETY: "

// A Life is one process as the sink knows it. All times are CLOCK_BOOTTIME of one machine: of the writers where they share
// the sink's, else of the sink.
type Life struct {
	Writer string
	Tokens []fence.Token // more than one is a violation: a tenure is a process of its own
	First  time.Duration // its first write
	Last   time.Duration // its last write, stored or refused
	// Stored is the span of those that the sink stored; both are zero if there were none.
	FirstStored, LastStored time.Duration
	Accepted, Refused       int
	// Stale counts its writes that came after a younger process had begun to write; StaleAccepted those the sink stored.
	Stale, StaleAccepted int
}

// Lives tells the processes that wrote to the resource, in the order in which they began to write.
func Lives(attempts []fencetest.Attempt, resource fence.Resource, oneClock bool) []Life {
	var lives []*Life
	byWriter := map[string]*Life{}
	youngest := "" // the writer that began last
	for _, a := range attempts {
		if a.Resource != resource {
			continue
		}
		at := a.At
		if oneClock {
			at = a.Sent
		}
		life := byWriter[a.Writer]
		if life == nil {
			life = &Life{Writer: a.Writer, First: at}
			byWriter[a.Writer], youngest = life, a.Writer
			lives = append(lives, life)
		}
		life.add(a, at, a.Writer != youngest)
	}
	told := make([]Life, 0, len(lives))
	for _, life := range lives {
		told = append(told, *life)
	}
	slices.SortStableFunc(told, func(a, b Life) int { return cmp.Compare(a.First, b.First) })
	return told
}

func (l *Life) add(a fencetest.Attempt, at time.Duration, stale bool) {
	if !slices.Contains(l.Tokens, a.Token) {
		l.Tokens = append(l.Tokens, a.Token)
	}
	l.First, l.Last = min(l.First, at), max(l.Last, at)
	if stale {
		l.Stale++
	}
	if !a.Accepted {
		l.Refused++
		return
	}
	l.Accepted++
	if l.FirstStored == 0 {
		l.FirstStored = at
	}
	l.LastStored = at
	if stale {
		l.StaleAccepted++
	}
}

// A Takeover is the step from one process to the next.
type Takeover struct {
	From, To Life
	// Gap is the time without a stored write between them.
	Gap time.Duration
	// Overlap is how long the older one continued to send after the younger one had begun; zero if it did not.
	Overlap time.Duration
}

// Takeovers lists the steps between lives, in order.
func Takeovers(lives []Life) []Takeover {
	var steps []Takeover
	for i := 1; i < len(lives); i++ {
		from, to := lives[i-1], lives[i]
		steps = append(steps, Takeover{
			From: from, To: to,
			Gap:     max(0, to.FirstStored-from.LastStored),
			Overlap: max(0, from.Last-to.First),
		})
	}
	return steps
}

// Violations lists what may never be seen: a token that serves two processes or does not grow, and a stale write that was stored. Unless
// it is expected, it also lists a moment with two processes.
func Violations(lives []Life, expectOverlap bool) []string {
	var found []string
	for i, life := range lives {
		if len(life.Tokens) != 1 {
			found = append(found, fmt.Sprintf(Safety+"one process, tokens %v: %s", life.Tokens, life.Writer))
		}
		for _, older := range lives[:i] {
			if slices.Max(older.Tokens) >= slices.Min(life.Tokens) {
				found = append(found, fmt.Sprintf(Safety+"the token does not grow from %s (%v) to %s (%v)", older.Writer, older.Tokens, life.Writer, life.Tokens))
			}
		}
	}
	found = append(found, StoredStale(lives)...)
	if !expectOverlap {
		found = append(found, Overlaps(lives)...)
	}
	return found
}

// StoredStale names the processes of which the sink has stored writes that were stale.
func StoredStale(lives []Life) []string {
	var found []string
	for _, life := range lives {
		if life.StaleAccepted > 0 {
			found = append(found, fmt.Sprintf(Safety+"%d stale writes of %s were stored", life.StaleAccepted, life.Writer))
		}
	}
	return found
}

// Overlaps names the pairs of processes that wrote at the same time.
func Overlaps(lives []Life) []string {
	var found []string
	for i, life := range lives {
		for _, older := range lives[:i] {
			if overlap := older.Last - life.First; overlap >= 0 {
				found = append(found, fmt.Sprintf(Safety+"two processes for %v: %s and %s", overlap, older.Writer, life.Writer))
			}
		}
	}
	return found
}
