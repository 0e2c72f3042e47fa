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

// Agent is an agent to ask.
type Agent struct {
	// Socket is the path of its socket.
	Socket string
}

// Here is the agent of this container, by EnvSocket, else at DefaultSocket.
func Here() Agent { return Agent{Socket: cmp.Or(os.Getenv(EnvSocket), DefaultSocket)} }

const (
	// Patience is how long a question takes at most whose context has no deadline: an agent that is stopped gives no answer.
	Patience = time.Second
	// longest bounds an answer, in bytes; an agent's has 4 KiB at most.
	longest = 64 << 10
	// crowded is the pause before another attempt where too many ask at once.
	crowded = 5 * time.Millisecond
)

// Ask asks the agent how things stand. An error is ErrNoAgent and says what to do about it. Without a deadline of ctx's own, it
// takes no longer than Patience.
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
		err = op.Err // the path is told already
	}
	if err != nil {
		return Status{}, err
	}
	defer func() { _ = conn.Close() }()
	// The context's clock stands still while the machine sleeps. So does whoever asks.
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
		return Status{}, fmt.Errorf("the answer is not what an agent says: %w", err)
	}
	if s.Version != Version {
		return Status{}, fmt.Errorf("the answer is of version %d of the protocol, and %d is understood here: use the agent's release of it",
			s.Version, Version)
	}
	return s, nil
}

// connect waits for its turn where the kernel says that too many wait.
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

// remedy says what to do about an error.
func (a Agent) remedy(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: ask in the container that the SingletonJob gates (kubectl exec POD -c CONTAINER), or set %s to the socket",
			err, EnvSocket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: the agent that made it has ended; the kubelet starts the container anew", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: make its directory, and those above, searchable for user %d; the socket itself is open to all", err, os.Getuid())
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("no answer in time (%w): the agent is stopped, or the machine has no time for it; ask again", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the agent has just ended, or is about to", err)
	}
	return err
}
