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

const checkUsage = `agent check asks the agent of this container whether its tenure is valid, that is, whether the process may act now.

  agent check [-min-left TIME] [-token N] [-quiet] [-timeout TIME]

  -min-left TIME   succeed only if at least TIME is left unless the tenure is renewed, such as 5s
  -token N         succeed only if the tenure has token N, such as "$FENCING_TOKEN"
  -quiet, -q       print nothing: neither the time left nor the reason for a failure
  -timeout TIME    how long to wait for the agent's answer (default 1s)

Exit codes: 0 valid, 1 not valid, 64 wrong command line, 69 no agent answers. Treat every code except 0 as "not valid".

A check is not a fence: the process can pause for an hour between the answer and its next step. Send the token with
every write, and let the sink reject lower tokens.
`

const leaseUsage = `agent lease asks the agent of this container for the state of the Lease and of its own tenure, and prints the answer.

  agent lease [-o text|json] [-timeout TIME]

  -o json          print one JSON object; docs/tenure.md in the project's repository describes its fields
  -timeout TIME    how long to wait for the agent's answer (default 1s)

Exit codes: 0 an agent answers, whether it is the holder or a standby; 64 wrong command line; 69 no agent answers.
`

// question holds the flags that check and lease have in common.
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

// parse reads the command line. If the user asks for help or the command line is wrong, end is true and code is the exit code.
func (q *question) parse(args []string, stdout, stderr io.Writer) (code int, end bool) {
	err := q.flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, q.usage)
		return 0, true
	case err == nil && q.flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", q.flags.Arg(0))
	case err == nil && q.timeout <= 0:
		err = fmt.Errorf("-timeout %v: must be more than 0", q.timeout)
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

// check is for scripts that check before a step. It fails in every unclear case.
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
		return q.wrong(stderr, fmt.Errorf("-token %d, -min-left %v: neither must be negative", *token, *atLeast))
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

// enough returns the reason why the answer is not good enough, or nil.
func enough(s tenure.Status, left time.Duration, token int64, atLeast time.Duration) error {
	switch {
	case !s.Valid:
		return fmt.Errorf("%w: %s", tenure.ErrNoTenure, s.Reason)
	case token != 0 && token != s.Token:
		return fmt.Errorf("%w: the current tenure has token %d, not %d", tenure.ErrNoTenure, s.Token, token)
	case left <= 0:
		return fmt.Errorf("%w: it has just expired", tenure.ErrNoTenure)
	case left < atLeast:
		return fmt.Errorf("%w for %v: only %v left with token %d", tenure.ErrNoTenure, atLeast, left.Truncate(time.Millisecond), s.Token)
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
		return q.wrong(stderr, fmt.Errorf("-o %s: the formats are text and json", *format))
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
	if s.NotReady != "" {
		if _, err = fmt.Fprintf(w, "not ready: %q\n", s.NotReady); err != nil {
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
