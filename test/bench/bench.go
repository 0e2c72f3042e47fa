//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
)

// bench is one execution of the benchmark.
type bench struct {
	options
	begun    time.Time
	cluster  *cluster.Cluster
	subjects []subject
	faults   []faultCase
	cells    []*Cell
}

func (b *bench) setUp(ctx context.Context) error {
	if err := b.cluster.Lab.Fault(ctx, "heal"); err != nil {
		return err
	}
	if err := b.Load(ctx, b.cluster); err != nil {
		return err
	}
	if err := b.cluster.LoadProgram(ctx, "./test/bench/elector", electorImage); err != nil {
		return err
	}
	return b.cluster.Install(ctx, "charts/singletonjob", b.Image)
}

// rounds goes over all faults and subjects again and again, so that what changes on the machine meanwhile meets all alike. A failed trial
// is reported and left out.
func (b *bench) rounds(ctx context.Context) error {
	var errs []error
	for round := range b.runs {
		for _, f := range b.faults {
			for _, s := range b.subjects {
				if ctx.Err() != nil {
					return errors.Join(append(errs, ctx.Err())...)
				}
				errs = append(errs, b.trial(ctx, round, f, s))
			}
		}
	}
	return errors.Join(errs...)
}

func (b *bench) trial(ctx context.Context, round int, f faultCase, s subject) error {
	t := &trial{
		cluster: b.cluster, subject: s, fault: f, progress: os.Stderr,
		namespace: fmt.Sprintf("bench-%s-%s-%d", s.key, f.key, round+1),
	}
	slow := t.patience() > expected || t.patience() == never
	if slow && round >= b.slowRuns {
		return nil
	}
	if time.Since(b.begun)+t.patience() > b.budget {
		_, _ = fmt.Fprintf(os.Stderr, "%s, %s: left out, the time is up\n", f.title, s.title)
		return nil
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s, %s, run %d\n", f.title, s.title, round+1)
	run, err := t.run(ctx)
	if err != nil {
		err = fmt.Errorf("%s, %s, run %d: %w", f.title, s.title, round+1, err)
		_, _ = fmt.Fprintln(os.Stderr, err)
		return err
	}
	t.say("%s", describe(run))
	cell := b.cell(s, f)
	cell.Runs = append(cell.Runs, run)
	cell.sum()
	return b.write(ctx) // after each, so that an interruption costs nothing
}

func describe(r Run) string {
	text := "no other process took over"
	if r.Takeover != nil {
		text = "taken over after " + show(*r.Takeover)
	}
	if r.AfterRenewal != nil {
		text += ", " + show(*r.AfterRenewal) + " after the last renewal"
	}
	text += ", nothing written for " + show(r.Gap)
	if r.Overlap > 0 {
		text += ", two processes for " + show(r.Overlap)
	}
	return text + fmt.Sprintf(", stale writes %d sent, %d stored", r.StaleOffered, r.StaleAccepted)
}

func (b *bench) cell(s subject, f faultCase) *Cell {
	for _, c := range b.cells {
		if c.Subject == s.key && c.Fault == f.key {
			return c
		}
	}
	c := &Cell{Subject: s.key, Fault: f.key}
	b.cells = append(b.cells, c)
	inOrder(b.cells, keys(subjects(), subject.name), keys(faultCases(), faultCase.name))
	return c
}

// A Result is what the JSON file holds. All times in it are nanoseconds.
type Result struct {
	Date       time.Time         `json:"date"`
	Took       time.Duration     `json:"took"`
	Cores      int               `json:"cores"`
	Kernel     string            `json:"kernel"`
	Kubernetes string            `json:"kubernetes"`
	Nodes      int               `json:"nodes"`
	Subjects   map[string]string `json:"subjects"` // key → title
	Faults     map[string]string `json:"faults"`
	Cells      []*Cell           `json:"cells"`
}

func (b *bench) result(ctx context.Context) (Result, error) {
	version, err := b.cluster.Kubectl(ctx, "version", "--output=json")
	if err != nil {
		return Result{}, err
	}
	var parsed struct {
		ServerVersion struct{ GitVersion string }
	}
	if err := json.Unmarshal([]byte(version), &parsed); err != nil {
		return Result{}, err
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return Result{}, err
	}
	r := Result{
		Date: b.begun.UTC(), Took: time.Since(b.begun), Cores: runtime.NumCPU(), Kernel: unix.ByteSliceToString(uname.Release[:]),
		Kubernetes: parsed.ServerVersion.GitVersion, Nodes: len(b.cluster.Lab.Nodes), Cells: b.cells,
		Subjects: map[string]string{}, Faults: map[string]string{},
	}
	for _, s := range b.subjects {
		r.Subjects[s.key] = s.title
	}
	for _, f := range b.faults {
		r.Faults[f.key] = f.title
	}
	return r, nil
}

func (b *bench) write(ctx context.Context) error {
	r, err := b.result(ctx)
	if err != nil {
		return err
	}
	return errors.Join(b.Write(r), onlab.WriteFile(b.svg, []byte(chart(r))))
}

func (b *bench) report(ctx context.Context) error {
	if len(b.cells) == 0 {
		return errors.New("nothing was measured")
	}
	if err := b.write(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	r, err := b.result(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	fmt.Print(table(r))
	fmt.Printf("\n%s\n%s\n", b.JSON, b.svg)
	return nil
}

// show rounds to what a reader can use.
func show(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
