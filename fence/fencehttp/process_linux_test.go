package fencehttp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/rivals"
	"github.com/singletonjob/operator/test/subprocess"
)

// The test binary is another program if roleVariable names one. Its argument is in orderVariable.
const (
	roleVariable  = "FENCEHTTP_ROLE"
	orderVariable = "FENCEHTTP_ORDER"
)

func TestMain(m *testing.M) {
	roles := map[string]func(order string) error{"service": serveFromDisk, "forgetful service": serveWithMemory, "client": writeAndFreeze}
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Getenv(orderVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play starts a role, and returns what it prints.
func play(t *testing.T, role, order string) (*subprocess.Process, *bufio.Scanner) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), roleVariable+"="+role, orderVariable+"="+order)
	out, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	command.Stdout, command.Stderr = theirs, os.Stderr
	process, err := subprocess.Start(command)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Stop(0) })
	return process, bufio.NewScanner(out)
}

// --- A service that is killed

// onDisk is a store and a service whose files survive their process: a line for each mark, and for each write.
type onDisk struct {
	Memory

	marks, writes *os.File
}

func openDisk(dir string) (*onDisk, error) {
	d := &onDisk{}
	for name, file := range map[string]**os.File{"marks": &d.marks, "writes": &d.writes} {
		var err error
		if *file, err = os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
			return nil, err
		}
	}
	for lines := bufio.NewScanner(d.marks); lines.Scan(); {
		var r fence.Resource
		var mark fence.Token
		if _, err := fmt.Sscan(lines.Text(), &r, &mark); err != nil {
			return nil, err
		}
		if err := d.Memory.Raise(context.Background(), r, mark); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Raise does not sync: the process is killed, not the machine.
func (d *onDisk) Raise(ctx context.Context, r fence.Resource, to fence.Token) error {
	if _, err := fmt.Fprintln(d.marks, r, int64(to)); err != nil {
		return err
	}
	return d.Memory.Raise(ctx, r, to)
}

func (d *onDisk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(r.Body)
	if err == nil {
		_, err = fmt.Fprintln(d.writes, r.Header.Get(fence.HeaderResource), string(payload))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func serveFromDisk(dir string) error {
	d, err := openDisk(dir)
	if err != nil {
		return err
	}
	return printAndServe(d, d)
}

func serveWithMemory(dir string) error {
	d, err := openDisk(dir)
	if err != nil {
		return err
	}
	return printAndServe(d, &Memory{})
}

func printAndServe(next http.Handler, store Store) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	return http.Serve(listener, &Fence{Resource: FromHeader, Store: store, Next: next})
}

// killable is a service in a process of its own.
type killable struct {
	t         *testing.T
	role, dir string
	process   *subprocess.Process

	mu  sync.Mutex // guards url
	url string
}

func (k *killable) Restart(context.Context) error {
	if k.process != nil {
		k.process.Stop(0)
	}
	process, out := play(k.t, k.role, k.dir)
	if !out.Scan() {
		return fmt.Errorf("the service says nothing: %w", out.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process, k.url = process, out.Text()
	return nil
}

func (k *killable) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	k.mu.Lock()
	url := k.url
	k.mu.Unlock()
	return request(ctx, http.DefaultClient, url, r, token, payload, http.StatusOK)
}

func (k *killable) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(k.dir, "writes"))
	var payloads []string
	for line := range strings.Lines(string(text)) {
		if name, payload, _ := strings.Cut(strings.TrimSpace(line), " "); name == string(r) {
			payloads = append(payloads, payload)
		}
	}
	return payloads, err
}

// TestAServiceIsKilled while it is written to: what it has accepted is there, and the highest token, if its store survives the process.
func TestAServiceIsKilled(t *testing.T) {
	for role, survives := range map[string]bool{"service": true, "forgetful service": false} {
		for _, name := range []string{"RestartForgetsNothing", "CrashDuringWrites"} {
			if name == "CrashDuringWrites" && !survives {
				continue // the present tenure may write first
			}
			t.Run(role+"/"+name, func(t *testing.T) {
				k := &killable{t: t, role: role, dir: t.TempDir()}
				if err := k.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := fencetest.Fault(ctx, k, name); (err == nil) != survives {
					t.Errorf("the store survives: %v; the suite finds: %v", survives, err)
				}
			})
		}
	}
}

// --- A client that is frozen

// step is where a client is frozen in its second write.
type step string

const (
	unsent   step = "before a byte is sent"
	sending  step = "when half is sent"
	answered step = "before the answer is read"
)

type order struct {
	URL string
	At  step
}

// freeze stops this process. The signal is for the calling thread: another one would stop this one a moment later.
func freeze() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		panic(err)
	}
}

// halves freezes the process between the halves of a text.
type halves struct {
	text string
	at   int
}

func (h *halves) Read(p []byte) (int, error) {
	if h.at == len(h.text) {
		return 0, io.EOF
	}
	if h.at > 0 {
		freeze()
	}
	n := copy(p, h.text[h.at:min(h.at+len(h.text)/2, len(h.text))])
	h.at += n
	return n, nil
}

// frozenDialer freezes the process once it has a connection.
func frozenDialer(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	freeze()
	return conn, err
}

// set writes to the register.
func set(client *http.Client, url string, token fence.Token, value string, body io.Reader, before func()) rivals.Operation {
	op := rivals.Begin(rivals.Write, token, value)
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, body)
	if err != nil {
		panic(err)
	}
	request.ContentLength = int64(len(value))
	response, err := client.Do(request)
	if err != nil { // it may have been stored
		op.End(nil, err)
		return op
	}
	defer response.Body.Close()
	before()
	if err = Check(response); err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	op.End(err, nil)
	return op
}

// writeAndFreeze prints what becomes of three writes.
func writeAndFreeze(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	base := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: &Transport{Token: 33, Resource: resource, Base: base}}
	for _, value := range []string{"first", "frozen", "again"} {
		body, before := io.Reader(strings.NewReader(value)), func() {}
		base.DialContext = nil
		if value == "frozen" {
			switch o.At {
			case unsent:
				base.DialContext = frozenDialer
			case sending:
				body = &halves{text: value}
			case answered:
				before = freeze
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(set(client, o.URL, 33, value, body, before)); err != nil {
			return err
		}
	}
	return nil
}

// register is a service with one value. It notes who has begun to write.
type register struct {
	mu    sync.Mutex
	value string
	all   []string
	begun chan string // tokens
}

func (s *register) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.begun <- r.Header.Get(fence.HeaderToken)
	value, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value = string(value)
	s.all = append(s.all, s.value)
}

func (s *register) read() (op rivals.Operation, all string) {
	op = rivals.Begin(rivals.Read, 0, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	op.Value = s.value
	op.End(nil, nil)
	return op, strings.Join(s.all, " ")
}

// checkThenWrite is what the fence would be if it compared the token when a request arrives, and let go of it.
func checkThenWrite(next http.Handler) http.Handler {
	var mu sync.Mutex
	var mark fence.Token
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := tokenOf(r)
		mu.Lock()
		if err == nil {
			mark, err = fence.Gate{Resource: resource}.Accept(mark, token)
		}
		mu.Unlock()
		if err != nil {
			refuse(w, resource, token, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stopped waits until a process is frozen.
func stopped(t *testing.T, p *subprocess.Process) {
	t.Helper()
	until(t, "the client is frozen", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(text), ") ")
		return strings.HasPrefix(state, "T")
	})
}

// tenures has a client be frozen inside a request, and thawed when the next tenure has written.
func tenures(t *testing.T, fenced http.Handler, s *register, at step) (history []rivals.Operation, last rivals.Operation, stored string) {
	t.Helper()
	server := httptest.NewServer(fenced)
	t.Cleanup(server.Close)
	text, err := json.Marshal(order{server.URL, at})
	if err != nil {
		t.Fatal(err)
	}
	process, out := play(t, "client", string(text))
	next := func() (op rivals.Operation) {
		t.Helper()
		if !out.Scan() {
			t.Fatal("the client ended: ", out.Err())
		}
		if err := json.Unmarshal(out.Bytes(), &op); err != nil {
			t.Fatal(err)
		}
		history = append(history, op)
		return op
	}
	read := func() {
		op, all := s.read()
		history, stored = append(history, op), all
	}
	if first := next(); first.Outcome != rivals.Stored {
		t.Fatalf("the first write: %+v", first)
	}
	<-s.begun
	if at != unsent { // it is in the service
		<-s.begun
	}
	stopped(t, process)
	read()
	client := &http.Client{Transport: &Transport{Token: 34, Resource: resource}, Timeout: patience}
	for _, value := range []string{"successor", "present"} {
		op := set(client, server.URL, 34, value, strings.NewReader(value), func() {})
		if op.Outcome != rivals.Stored {
			t.Errorf("the next tenure: %+v", op)
		}
		history = append(history, op)
	}
	read()
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	next()
	last = next()
	read()
	return history, last, stored
}

func newRegister() *register { return &register{begun: make(chan string, 100)} }

// TestAFrozenClient: a process is stopped inside a request, loses its tenure, and continues when the next one has written. The service is as
// if it had not continued.
func TestAFrozenClient(t *testing.T) {
	for at, want := range map[step]struct{ frozen, stored string }{
		unsent:   {rivals.Stale, "first successor present"},
		sending:  {rivals.Unknown, "first successor present"},
		answered: {rivals.Stored, "first frozen successor present"},
	} {
		t.Run(string(at), func(t *testing.T) {
			s := newRegister()
			f := &Fence{Resource: FromHeader, Store: &Memory{}, Next: s, Drain: -1, Settle: patience, Patience: 2 * patience}
			t.Cleanup(f.Close)
			history, last, stored := tenures(t, f, s, at)
			if frozen := history[len(history)-3]; frozen.Outcome != want.frozen {
				t.Errorf("the write in which it was frozen: %+v", frozen)
			}
			if last.Outcome != rivals.Stale {
				t.Errorf("SAFETY: the write after that: %+v", last)
			}
			if stored != want.stored {
				t.Errorf("SAFETY: stored is %q, want %q", stored, want.stored)
			}
			if !rivals.Linearizable(history) {
				t.Errorf("SAFETY: no fenced register has this history: %+v", history)
			}
		})
	}
}

// TestAFrozenClientPassesACheck: what the test above would see if the fence let go of the token before the write.
func TestAFrozenClientPassesACheck(t *testing.T) {
	s := newRegister()
	history, _, stored := tenures(t, checkThenWrite(s), s, sending)
	if stored != "first successor present frozen" || rivals.Linearizable(history) {
		t.Errorf("stored is %q, and the history is taken for that of a fence: %+v", stored, history)
	}
}
