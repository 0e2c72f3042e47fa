//go:build linux

package initd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// A Client asks a machine's init. Its value is the path of init's socket.
type Client string

// Start starts the service unless it runs.
func (c Client) Start(ctx context.Context, s Service) error {
	_, err := c.ask(ctx, request{Op: opStart, Service: s})
	return err
}

// Signal sends the signal to the service's first process.
func (c Client) Signal(ctx context.Context, name string, sig syscall.Signal) error {
	_, err := c.ask(ctx, request{Op: opSignal, Service: Service{Name: name}, Signal: sig})
	return err
}

// Stop ends the service, by SIGKILL after the grace or at once if there is none, and returns when it is gone.
func (c Client) Stop(ctx context.Context, name string, grace time.Duration) error {
	_, err := c.ask(ctx, request{Op: opStop, Service: Service{Name: name}, Grace: grace})
	return err
}

// List returns every service that was ever started.
func (c Client) List(ctx context.Context) ([]Status, error) {
	answer, err := c.ask(ctx, request{Op: opList})
	return answer.Services, err
}

func (c Client) ask(ctx context.Context, q request) (response, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", string(c))
	if err != nil {
		return response{}, fmt.Errorf("reach the machine's init: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return response{}, fmt.Errorf("ask %s to %s %s: %w", c, q.Op, q.Service.Name, err)
	}
	var answer response
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return response{}, fmt.Errorf("ask %s to %s %s: %w", c, q.Op, q.Service.Name, errors.Join(err, ctx.Err()))
	}
	if answer.Error != "" {
		return answer, errors.New(answer.Error)
	}
	return answer, nil
}
