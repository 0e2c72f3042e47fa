package tenure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// Agent is an agent that answers queries.
type Agent struct {
	// Socket is the path of the agent's socket.
	Socket string
}

// Here returns the agent of this container. Its socket is the value of EnvSocket, or DefaultSocket if that is empty.
func Here() Agent { return Agent{Socket: cmp.Or(os.Getenv(EnvSocket), DefaultSocket)} }

const (
	// Patience is the timeout of a query whose context has no deadline. A stopped agent does not answer.
	Patience = time.Second
	// longest is the maximum size of an answer in bytes. An agent sends at most 4 KiB.
	longest = 64 << 10
	// crowded is the pause before the next attempt to connect if too many clients connect at once.
	crowded = 5 * time.Millisecond
)

// Ask returns the agent's status. Its error is ErrNoAgent and names the remedy. If ctx has no deadline, Ask takes at most Patience.
func (a Agent) Ask(ctx context.Context) (Status, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	s, err := a.ask(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("%w on %s: %w", ErrNoAgent, a.Socket, a.remedy(ctx, err))
	}
	return s, nil
}

func (a Agent) ask(ctx context.Context) (Status, error) {
	if err := supported(); err != nil {
		return Status{}, err
	}
	conn, err := a.connect(ctx)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // the caller adds the path
	}
	if err != nil {
		return Status{}, err
	}
	defer func() { _ = conn.Close() }()
	// The context's clock stops while the machine sleeps, and so does the calling process.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	body, err := io.ReadAll(io.LimitReader(conn, longest))
	if err != nil {
		return Status{}, err
	}
	if len(body) == 0 {
		return Status{}, io.ErrUnexpectedEOF
	}
	var s Status
	if err := json.Unmarshal(body, &s); err != nil {
		return Status{}, fmt.Errorf("the answer is not an agent's status: %w", err)
	}
	if s.Version != Version {
		return Status{}, fmt.Errorf("the answer has protocol version %d, this program supports only %d: use package tenure of the agent's release",
			s.Version, Version)
	}
	return s, nil
}

// connect retries while the socket's queue is full (EAGAIN).
func (a Agent) connect(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", a.Socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(crowded):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// remedy adds to an error what the user can do about it.
func (a Agent) remedy(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: run this in the gated container (kubectl exec POD -c CONTAINER), or set %s to the path of the socket",
			err, EnvSocket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: the agent that created the socket has ended; the kubelet restarts the container", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: give user %d execute permission on all directories of the path; the socket itself is open to all users", err, os.Getuid())
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("no answer in time (%w): the agent is stopped or gets no CPU; try again", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the agent has just ended or is ending", err)
	}
	return err
}
