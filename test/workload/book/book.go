// Package book is the work of a scheduled job under test. It books at a ledger that it has begun, that it is at work, and that it has
// ended. Then it exits with 0.
package book

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/workload/load"
)

// Kind says what an entry books.
type Kind string

// The kinds.
const (
	Begin Kind = "begin"
	Work  Kind = "work"
	End   Kind = "end"
)

// Entry is one line of the ledger.
type Entry struct {
	Kind Kind `json:"kind"`
	// Subject is what runs the program, Process tells one execution of it from another.
	Subject string `json:"subject"`
	Process string `json:"process"`
	Pod     string `json:"pod"`
	// Tick is what the run is for, in seconds since 1970.
	Tick    int64 `json:"tick"`
	Attempt int   `json:"attempt"`
	// Token is 0 for programs that have none.
	Token fence.Token `json:"token"`
}

const (
	every    = 100 * time.Millisecond
	patience = 500 * time.Millisecond
	// refused is the exit code of a program whose token is stale.
	refused = 3
)

// FromEnv is the entry that a program books, from the environment of a run, or of a CronJob's pod.
func FromEnv(env func(string) string) (Entry, error) {
	e := Entry{
		Subject: env("SUBJECT"), Pod: load.Pod(), Process: fmt.Sprintf("%s@%d", load.Pod(), fencetest.Boottime().Milliseconds()), Attempt: 1,
	}
	if job := env("JOB"); job != "" { // its name ends with the minutes of its tick
		minutes, err := strconv.ParseInt(job[strings.LastIndexByte(job, '-')+1:], 10, 64)
		e.Tick = minutes * 60
		return e, err
	}
	tick, err := time.Parse(time.RFC3339, env("SINGLETONJOB_TICK"))
	if err != nil {
		return Entry{}, err
	}
	e.Tick = tick.Unix()
	if e.Attempt, err = strconv.Atoi(env("SINGLETONJOB_ATTEMPT")); err != nil {
		return Entry{}, err
	}
	e.Token, err = fence.ParseToken(env(fence.EnvToken))
	return e, err
}

// Run books for as long as the work lasts, and returns the exit code.
func Run(ledger string, e Entry, work time.Duration) int {
	client := &http.Client{Transport: &http.Transport{}}
	e.Kind = Begin
	if !must(client, ledger, e) {
		return refused
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for until := fencetest.Boottime() + work; fencetest.Boottime() < until; <-tick.C {
		e.Kind = Work
		if code := send(client, ledger, e); code == http.StatusPreconditionFailed {
			return refused
		}
	}
	e.Kind = End
	if !must(client, ledger, e) {
		return refused
	}
	return 0
}

// must repeats what has to be booked until it is, or is refused.
func must(client *http.Client, ledger string, e Entry) bool {
	for {
		switch send(client, ledger, e) {
		case http.StatusOK:
			return true
		case http.StatusPreconditionFailed:
			return false
		}
		time.Sleep(every)
	}
}

// send returns the status of the answer, 0 for none.
func send(client *http.Client, ledger string, e Entry) int {
	body, err := json.Marshal(e)
	if err != nil {
		panic(err) // no field of it can fail to encode
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, ledger, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// Main is the program.
func Main() error {
	e, err := FromEnv(os.Getenv)
	if err != nil {
		return fmt.Errorf("what is this a run of? %w", err)
	}
	work, err := time.ParseDuration(os.Getenv("WORK"))
	if err != nil {
		return err
	}
	os.Exit(Run(os.Getenv("LEDGER"), e, work))
	return nil
}
