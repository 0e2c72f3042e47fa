//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/tenure"
)

const checkUsage = `agent check asks this container's agent whether its tenure is valid: whether the process may act now.

  agent check [-min-left TIME] [-token N] [-quiet] [-timeout TIME]

  -min-left TIME   succeed only if so much is left unless the tenure is renewed, such as 5s
  -token N         succeed only if the tenure's token is N, such as "$FENCING_TOKEN"
  -quiet, -q       print nothing, neither what is left nor why it fails
  -timeout TIME    how long to wait for the agent's answer (1s)

Exit statuses: 0 valid, 1 not valid, 64 the command line is wrong, 69 no agent answers. Take whatever is not 0 for no.

Asking is no fence: between the answer and the step after it a process can stand still for an hour. Send the token along
with every write, and let the sink refuse lower ones.
`

const leaseUsage = `agent lease asks this container's agent how it stands to the Lease, and prints the answer.

  agent lease [-o text|json] [-timeout TIME]

  -o json          one JSON object; docs/tenure.md of the project names its fields
  -timeout TIME    how long to wait for the agent's answer (1s)

Exit statuses: 0 there is an answer, also that of a standby; 64 the command line is wrong, 69 no agent answers.
`

// question is what check and lease have in common.
type question struct {
	flags   *flag.FlagSet
	usage   string
	timeout time.Duration
}

func newQuestion(name, usage string) *question {
	q := &question{flags: flag.NewFlagSet(name, flag.ContinueOnError), usage: usage}
	q.flags.SetOutput(io.Discard)
	q.flags.DurationVar(&q.timeout, "timeout", tenure.Patience, "")
	return q
}

// parse reads the command line. Where it asks for help or is wrong, that is the end: code is the exit status.
func (q *question) parse(args []string, stdout, stderr io.Writer) (code int, end bool) {
	err := q.flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, q.usage)
		return 0, true
	case err == nil && q.flags.NArg() > 0:
		err = fmt.Errorf("it takes no argument %q", q.flags.Arg(0))
	case err == nil && q.timeout <= 0:
		err = fmt.Errorf("-timeout %v: it must be more than 0", q.timeout)
	}
	if err != nil {
		return q.wrong(stderr, err), true
	}
	return 0, false
}

func (q *question) wrong(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "agent %s: %v\n\n%s", q.flags.Name(), err, q.usage)
	return contract.ExitUsage
}

func (q *question) ask() (tenure.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), q.timeout)
	defer cancel()
	return agent.Local(os.Getenv).Ask(ctx)
}

// check is for scripts that ask before a step. Whatever is unclear is no.
func check(args []string, stdout, stderr io.Writer) int {
	q := newQuestion("check", checkUsage)
	atLeast := q.flags.Duration("min-left", 0, "")
	token := q.flags.Int64("token", 0, "")
	var quiet bool
	q.flags.BoolVar(&quiet, "quiet", false, "")
	q.flags.BoolVar(&quiet, "q", false, "")
	if code, end := q.parse(args, stdout, stderr); end {
		return code
	}
	if *token < 0 || *atLeast < 0 {
		return q.wrong(stderr, fmt.Errorf("-token %d, -min-left %v: neither can be negative", *token, *atLeast))
	}
	if quiet {
		stdout, stderr = io.Discard, io.Discard
	}
	s, err := q.ask()
	if err != nil {
		return fail(stderr, contract.ExitNoAgent, err)
	}
	left := s.Left()
	if err := enough(s, left, *token, *atLeast); err != nil {
		return fail(stderr, 1, err)
	}
	of := ""
	if s.Run != "" {
		of = fmt.Sprintf(" for run %s, attempt %d", s.Run, s.Attempt)
	}
	fmt.Fprintf(stdout, "valid: token %d, %v left%s\n", s.Token, left.Truncate(time.Millisecond), of)
	return 0
}

// enough says why an answer is no.
func enough(s tenure.Status, left time.Duration, token int64, atLeast time.Duration) error {
	switch {
	case !s.Valid:
		return fmt.Errorf("%w: %s", tenure.ErrNoTenure, s.Reason)
	case token != 0 && token != s.Token:
		return fmt.Errorf("%w: the present one has token %d, not %d", tenure.ErrNoTenure, s.Token, token)
	case left <= 0:
		return fmt.Errorf("%w: it has just run out", tenure.ErrNoTenure)
	case left < atLeast:
		return fmt.Errorf("%w for %v: %v are left with token %d", tenure.ErrNoTenure, atLeast, left.Truncate(time.Millisecond), s.Token)
	}
	return nil
}

func printLease(args []string, stdout, stderr io.Writer) int {
	q := newQuestion("lease", leaseUsage)
	format := q.flags.String("o", "text", "")
	if code, end := q.parse(args, stdout, stderr); end {
		return code
	}
	if *format != "text" && *format != "json" {
		return q.wrong(stderr, fmt.Errorf("-o %s: there is text and json", *format))
	}
	s, err := q.ask()
	if err != nil {
		return fail(stderr, contract.ExitNoAgent, err)
	}
	write := writeText
	if *format == "json" {
		write = func(w io.Writer, s tenure.Status) error { return json.NewEncoder(w).Encode(s) }
	}
	if err := write(stdout, s); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	return 0
}

func writeText(w io.Writer, s tenure.Status) error {
	_, err := fmt.Fprintf(w, "lease:     %s/%s\nholder:    %s\ntoken:     %d\ntenure:    %d\nthis pod:  %s, %s\n",
		s.Namespace, s.Name, s.Holder, s.Token, s.Tenure, s.Pod, s.Phase)
	if err != nil {
		return err
	}
	if s.Run != "" {
		if _, err = fmt.Fprintf(w, "run:       %s, attempt %d\n", s.Run, s.Attempt); err != nil {
			return err
		}
	}
	if left := s.Left(); left > 0 {
		_, err = fmt.Fprintf(w, "time left: %v\n", left.Truncate(time.Millisecond))
	} else {
		_, err = fmt.Fprintf(w, "not valid: %s\n", s.Reason)
	}
	return err
}
