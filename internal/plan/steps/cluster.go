package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/singletonjob/operator/internal/plan"
)

// fate is how the new version behaves.
type fate string

const (
	works      fate = "works"
	crashes    fate = "crashes"
	neverReady fate = "never-ready"
)

// pod is a candidate.
type pod struct {
	updated, ready, holds bool
	ordinal               int
	// apart: the pod was created for a node other than the holder's. elsewhere: it is on another node.
	apart, elsewhere bool
}

func (p pod) String() string {
	if p.updated {
		return fmt.Sprintf("new-%d", p.ordinal)
	}
	return fmt.Sprintf("old-%d", p.ordinal)
}

// cluster is everything but the operator: a scheduler, kubelets and agents.
type cluster struct {
	candidates, room, quota int
	same, inPlace, paused   bool
	// together: all pods were put on one node, and other nodes accept pods. tried: a pod was created for these nodes and did not fit.
	together, tried bool
	fate            fate
	pods            []*pod
	// asked is the pod that the holder must hand over to.
	asked *pod
	// soaked and failed are what the operator knows about the new version's process.
	soaked, failed bool
	// refused: a quota has rejected a pod. waited: the operator has waited long enough for room.
	refused, waited bool
}

// begin creates n candidates in their desired state.
func (c *cluster) begin(n int) {
	for i := range n {
		c.pods = append(c.pods, &pod{updated: c.same, ready: true, holds: i == 0, ordinal: i})
	}
	c.soaked = c.same && n > 0
}

// play continues until the operator has nothing to do and no other event happens.
func (c *cluster) play(out io.Writer) error {
	c.show(out, "  ", "at first")
	for range 100 {
		if did := c.act(); did != "" {
			c.show(out, "→ ", did)
		} else if what := c.happens(); what != "" {
			c.show(out, "  ", what)
		} else {
			fmt.Fprintf(out, "  %s\n", c.end())
			return nil
		}
	}
	return errors.New("the rollout does not end")
}

func (c *cluster) show(out io.Writer, mark, what string) {
	var pods []string
	for _, p := range c.pods {
		state := "ready"
		switch {
		case p.holds:
			state = "holds"
		case !c.fits(p):
			state = "no room"
		case !p.ready:
			state = "not ready"
		}
		if c.together && p.elsewhere {
			state += " elsewhere"
		}
		pods = append(pods, fmt.Sprintf("%v %s", p, state))
	}
	fmt.Fprintf(out, "%s%-39s| %s\n", mark, what, cmp.Or(strings.Join(pods, ", "), "no pods"))
}

// fleet is the cluster as the operator counts it.
func (c *cluster) fleet() plan.Fleet {
	f := plan.Fleet{Desired: c.candidates, Soaked: c.soaked, Failed: c.failed, InPlace: c.inPlace, Paused: c.paused}
	for _, p := range c.pods {
		switch {
		case p.holds && p.updated:
			f.HolderNew = true
		case p.holds:
			f.HolderOld = true
		case p.apart && !p.ready:
			f.Mover, f.Awaited = true, !c.tried
		default:
			*plan.Standbys(&f, p.updated, p.ready)++
			f.Unplaced = f.Unplaced || p.updated && !c.fits(p)
		}
	}
	f.NoRoom = c.waited && f.OldReady > 0
	f.Together = c.together && !c.tried && !slices.ContainsFunc(c.pods, func(p *pod) bool { return p.elsewhere && p.ready })
	return f
}

// act carries out the operator's next step and describes it; empty if there is none.
func (c *cluster) act() string {
	s := plan.Next(c.fleet())
	removed := c.remove(s)
	created, refused := c.make(s.Create)
	var did []string
	if refused != "" {
		did = append(did, refused)
	}
	c.waited = c.waited && c.waiting()
	if len(removed) > 0 {
		did = append(did, "remove "+strings.Join(removed, " and "))
	}
	if len(created) > 0 {
		did = append(did, "create "+strings.Join(created, " and "))
	}
	if s.Move {
		p := c.create()
		p.apart, p.elsewhere = true, true
		did = append(did, fmt.Sprintf("create %v for another node", p))
	}
	if s.HandOver && c.asked == nil {
		c.asked = c.first(func(p *pod) bool { return p.updated && p.ready })
		did = append(did, fmt.Sprintf("ask %v to hand over to %v", c.holder(), c.asked))
	}
	return strings.Join(did, ", ")
}

// remove removes the pods of a step, the youngest first, and returns their names.
func (c *cluster) remove(s plan.Step) []string {
	var removed []string
	ranked := slices.Clone(c.pods)
	slices.SortStableFunc(ranked, func(a, b *pod) int { // pods on the holder's node last: they are removed first
		return cmp.Compare(on(b), on(a))
	})
	for _, p := range slices.Backward(ranked) {
		switch left := plan.Removals(&s, p.updated, p.ready); {
		case p.holds && s.RemoveHolder:
		case p.apart && !p.ready && s.GiveUpMove:
		case p.apart && !p.ready:
			continue
		case !p.holds && *left > 0:
			*left--
		default:
			continue
		}
		removed = append(removed, p.String())
		c.pods = slices.DeleteFunc(c.pods, func(other *pod) bool { return other == p })
	}
	return removed
}

// on returns 0 for a pod on the node of the first pods, and 1 for one elsewhere.
func on(p *pod) int {
	if p.elsewhere {
		return 1
	}
	return 0
}

// make creates pods and returns their names. refused names the pod that the quota rejects, unless it rejected one before.
func (c *cluster) make(count int) (created []string, refused string) {
	before := c.refused
	c.refused = false
	for range count {
		p := c.create()
		if c.quota > 0 && len(c.pods) > c.quota {
			c.pods, c.refused = c.pods[:len(c.pods)-1], true
			if !before {
				refused = fmt.Sprintf("create %v, rejected by a quota", p)
			}
			break
		}
		created = append(created, p.String())
	}
	return created, refused
}

// create creates a pod with the lowest free name.
func (c *cluster) create() *pod {
	p := &pod{updated: true}
	for slices.ContainsFunc(c.pods, func(other *pod) bool { return other.String() == p.String() }) {
		p.ordinal++
	}
	c.pods = append(c.pods, p)
	return p
}

func (c *cluster) first(is func(*pod) bool) *pod {
	if i := slices.IndexFunc(c.pods, is); i >= 0 {
		return c.pods[i]
	}
	return nil
}

func (c *cluster) holder() *pod { return c.first(func(p *pod) bool { return p.holds }) }

// fits reports whether a pod has a node: the pods that came first have one.
func (c *cluster) fits(p *pod) bool { return c.room == 0 || slices.Index(c.pods, p) < c.room }

// waiting reports whether a pod can't be scheduled.
func (c *cluster) waiting() bool {
	return c.refused || slices.ContainsFunc(c.pods, func(p *pod) bool { return !c.fits(p) })
}

// next returns the pod that takes a free Lease, nil if none is ready.
func (c *cluster) next() *pod {
	return cmp.Or(c.first(func(p *pod) bool { return p.ready && !p.updated }), c.first(func(p *pod) bool { return p.ready }))
}

// becoming returns the pod that becomes ready next, nil if none does.
func (c *cluster) becoming() *pod {
	if c.fate == neverReady || c.failed && c.holder() == nil {
		return nil
	}
	return c.first(func(p *pod) bool { return !p.ready && c.fits(p) })
}

// happens lets one event happen that the operator does not cause, and describes it; empty if there is none.
func (c *cluster) happens() string {
	holder := c.holder()
	if to := c.asked; to != nil {
		c.asked, holder.holds, to.holds = nil, false, true
		return fmt.Sprintf("%v has handed over to %v", holder, to)
	}
	if holder != nil && holder.updated && !c.soaked && c.fate == crashes {
		c.failed, holder.holds, holder.ready = true, false, false
		return fmt.Sprintf("the process of %v ends at once", holder)
	}
	if p := c.next(); holder == nil && p != nil {
		p.holds = true
		return fmt.Sprintf("%v acquires the Lease", p)
	}
	if p := c.becoming(); p != nil {
		p.ready = true
		return fmt.Sprintf("%v becomes ready", p)
	}
	if holder != nil && holder.updated && !c.soaked {
		c.soaked = true
		return fmt.Sprintf("%v has run for long enough", holder)
	}
	if c.waiting() && !c.waited && !c.tried {
		c.waited, c.tried = true, c.together
		return "there was no room for long enough"
	}
	return ""
}

// end describes the final state.
func (c *cluster) end() string {
	f := c.fleet()
	old := f.OldReady + f.OldUnready
	switch holder := c.holder(); {
	case c.paused && old > 0:
		return "paused"
	case holder == nil && c.failed:
		return "no other version is left: the kubelet restarts the process after growing delays"
	case c.failed:
		return fmt.Sprintf("stalled: %v continues, and nothing changes until the template does", holder)
	case holder == nil:
		return "stalled: nothing is ready to act"
	case old > 0 || f.HolderOld || f.NewUnready > 0:
		return fmt.Sprintf("stalled: %v continues, and waits for a pod to become ready", holder)
	case f.Together || c.tried:
		return fmt.Sprintf("not protected: every standby is on the node of %v", holder)
	default:
		return "done"
	}
}
