package check

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/test/closedport"
)

// patience bounds checks that are answered.
const patience = 2 * time.Minute

func run(t *testing.T, c Checker, of contract.Check) probe.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return c.Run(ctx, of)
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// process is what the HTTP checks below ask.
func process() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscan(r.PathValue("code"), &code)
		w.WriteHeader(code)
		fmt.Fprint(w, "body")
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		// The answer to a check is not shown, so what was asked is judged here.
		want := r.URL.Query().Get("want")
		var lines []string
		for name, values := range r.Header {
			for _, v := range values {
				lines = append(lines, name+": "+v)
			}
		}
		slices.Sort(lines)
		if got := r.Host + "|" + strings.Join(lines, "|"); !strings.HasSuffix(got, want) {
			http.Redirect(w, r, "http://elsewhere.invalid/"+got, http.StatusFound)
		}
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("place"), http.StatusFound)
	})
	mux.HandleFunc("/proto/{want}", func(w http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/"+r.PathValue("want") {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
		}
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "short")
	})
	mux.HandleFunc("/odd/{any}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	return mux
}

// Each row has the result of a kubelet for the same answer, by pkg/probe/http of Kubernetes 1.37 and its tests. There is one difference: a
// kubelet ignores a body that breaks off.
func TestHTTPGet(t *testing.T) {
	server := httptest.NewServer(process())
	defer server.Close()
	other := httptest.NewServer(process())
	defer other.Close()
	header := func(pairs ...string) (h []contract.Header) {
		for i := 0; i < len(pairs); i += 2 {
			h = append(h, contract.Header{Name: pairs[i], Value: pairs[i+1]})
		}
		return h
	}
	host := fmt.Sprintf("127.0.0.1:%d", portOf(t, server.URL))
	const rest = "|Connection: close|User-Agent: " + UserAgent
	for name, row := range map[string]struct {
		path    string
		headers []contract.Header
		want    probe.Outcome
		text    string // part of it; none at all if empty
	}{
		"200":                  {path: "/status/200", want: probe.Success},
		"204":                  {path: "/status/204", want: probe.Success},
		"no path":              {path: "", want: probe.Failure, text: "HTTP probe failed with statuscode: 404"},
		"no slash":             {path: "status/200", want: probe.Success},
		"an odd path":          {path: "/odd/a b%", want: probe.Success},
		"a path and a query":   {path: "/echo?want=" + rest, want: probe.Success},
		"399":                  {path: "/status/399", want: probe.Success, text: "Probe terminated redirects, Response body: body"},
		"400":                  {path: "/status/400", want: probe.Failure, text: "HTTP probe failed with statuscode: 400"},
		"500":                  {path: "/status/500", want: probe.Failure, text: "HTTP probe failed with statuscode: 500"},
		"300 without place":    {path: "/status/300", want: probe.Success, text: "Probe terminated redirects"},
		"redirect, then good":  {path: "/to?place=/status/200", want: probe.Success},
		"redirect, then bad":   {path: "/to?place=/status/503", want: probe.Failure, text: "503"},
		"redirect elsewhere":   {path: "/to?place=http://elsewhere.invalid/", want: probe.Success, text: "Probe terminated redirects"},
		"redirect, other port": {path: "/to?place=" + other.URL + "/status/200", want: probe.Success},
		"redirect for ever":    {path: "/loop", want: probe.Failure, text: "stopped after 10 redirects"},
		"the body is long":     {path: "/endless", want: probe.Success},
		"the body breaks off":  {path: "/broken", want: probe.Failure, text: "cannot read the response body"},
		"HTTP/1.1":             {path: "/proto/1.1", want: probe.Success},
		"headers":              {path: "/echo?want=" + host + "|Accept: */*" + rest, want: probe.Success},
		"own headers": {
			path:    "/echo?want=" + host + "|Accept: text/html|Connection: close|User-Agent: mine|X-A: 1|X-A: 2",
			headers: header("accept", "text/html", "user-agent", "mine", "x-a", "1", "X-A", "2"), want: probe.Success,
		},
		"no headers": {path: "/echo?want=" + host + "|Connection: close", headers: header("Accept", "", "User-Agent", ""), want: probe.Success},
		"host":       {path: "/echo?want=muffins.example.org|Accept: */*" + rest, headers: header("Host", "muffins.example.org"), want: probe.Success},
	} {
		t.Run(name, func(t *testing.T) {
			path, want, echo := strings.Cut(row.path, "want=")
			if echo {
				path += "want=" + url.QueryEscape(want)
			}
			got := run(t, Checker{}, contract.Check{HTTPGet: &contract.HTTPGet{Port: portOf(t, server.URL), Path: path, Headers: row.headers}})
			if got.Outcome != row.want || !strings.Contains(got.Text, row.text) || row.text == "" && got.Text != "" {
				t.Errorf("got %v %q, want %v %q", got.Outcome, got.Text, row.want, row.text)
			}
		})
	}
}

func TestHTTPGetWithTLSAndHTTP2(t *testing.T) {
	secure := httptest.NewUnstartedServer(process())
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	open := httptest.NewUnstartedServer(process())
	open.Config.Protocols = new(http.Protocols)
	open.Config.Protocols.SetUnencryptedHTTP2(true)
	open.Start()
	defer open.Close()
	for name, row := range map[string]struct {
		contract.HTTPGet
		want probe.Outcome
	}{
		"https, with a certificate of nobody": {contract.HTTPGet{Port: portOf(t, secure.URL), TLS: true, Path: "/proto/2.0"}, probe.Success},
		"http to an https port":               {contract.HTTPGet{Port: portOf(t, secure.URL), Path: "/status/200"}, probe.Failure},
		"HTTP/2 without TLS":                  {contract.HTTPGet{Port: portOf(t, open.URL), HTTP2: true, Path: "/proto/2.0"}, probe.Success},
		"HTTP/1.1 where only HTTP/2 is":       {contract.HTTPGet{Port: portOf(t, open.URL), Path: "/status/200"}, probe.Failure},
		"https to an http port":               {contract.HTTPGet{Port: portOf(t, open.URL), TLS: true, Path: "/status/200"}, probe.Failure},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, Checker{}, contract.Check{HTTPGet: &row.HTTPGet}); got.Outcome != row.want {
				t.Errorf("got %v %q, want %v", got.Outcome, got.Text, row.want)
			}
		})
	}
}

// Nothing but the check's own time ends the wait for one that does not answer, before or after its first words.
func TestTimeouts(t *testing.T) {
	silent := listen(t, "127.0.0.1:0") // connections are taken by the kernel, and nobody reads them
	begun := make(chan struct{}, 1)
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		<-r.Context().Done()
	}))
	defer stuck.Close()
	for name, of := range map[string]contract.Check{
		"http":               {HTTPGet: &contract.HTTPGet{Port: portOf(t, silent.Addr().String())}},
		"https":              {HTTPGet: &contract.HTTPGet{Port: portOf(t, silent.Addr().String()), TLS: true}},
		"http, in the body":  {HTTPGet: &contract.HTTPGet{Port: portOf(t, stuck.URL)}},
		"grpc":               {GRPC: &contract.GRPC{Port: portOf(t, silent.Addr().String())}},
		"grpc with TLS":      {GRPC: &contract.GRPC{Port: portOf(t, silent.Addr().String()), TLS: true}},
		"a port without use": {TCPSocket: &contract.TCPSocket{Port: closedport.On127(t)}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if name == "http, in the body" { // it is to have begun
				cancel()
				ctx, cancel = context.WithCancel(t.Context())
				go func() { <-begun; cancel() }()
			}
			defer cancel()
			if got := (Checker{}).Run(ctx, of); got.Outcome != probe.Failure || got.Text == "" {
				t.Errorf("got %v %q, want a failure", got.Outcome, got.Text)
			}
		})
	}
}

// A host of the check's own counts, then the pod's address, then the loopback.
func TestAddress(t *testing.T) {
	for _, row := range []struct {
		host, podIP, want string
	}{
		{"", "", "127.0.0.1:80"},
		{"", "10.1.2.3", "10.1.2.3:80"},
		{"", "fd00::5", "[fd00::5]:80"},
		{"localhost", "10.1.2.3", "localhost:80"},
		{"::1", "10.1.2.3", "[::1]:80"},
		{"[::1]", "", "[::1]:80"},
	} {
		if got := (Checker{PodIP: row.podIP}).address(row.host, 80); got != row.want {
			t.Errorf("host %q in a pod at %q: %s, want %s", row.host, row.podIP, got, row.want)
		}
	}
	port := closedport.On127(t) // on 127.0.0.1, of all addresses
	l, err := net.Listen("tcp", fmt.Sprintf("[::1]:%d", port))
	for ; errors.Is(err, syscall.EADDRINUSE); l, err = net.Listen("tcp", fmt.Sprintf("[::1]:%d", port)) {
		port = closedport.On127(t)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skip("no IPv6 here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := run(t, Checker{PodIP: "::1"}, contract.Check{TCPSocket: &contract.TCPSocket{Port: port}}); got.Outcome != probe.Success {
		t.Errorf("TCP over IPv6: %v %q", got.Outcome, got.Text)
	}
	if got := run(t, Checker{}, contract.Check{TCPSocket: &contract.TCPSocket{Port: port}}); got.Outcome != probe.Failure {
		t.Errorf("TCP to another address than is listened on: %v", got.Outcome)
	}
}

// grpcServer is a real server with the health service of gRPC's own.
func grpcServer(t *testing.T, register bool, options ...grpc.ServerOption) (*health.Server, int) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	server, states := grpc.NewServer(options...), health.NewServer()
	if register {
		healthpb.RegisterHealthServer(server, states)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return states, portOf(t, l.Addr().String())
}

func TestGRPC(t *testing.T) {
	states, port := grpcServer(t, true)
	states.SetServingStatus("good", healthpb.HealthCheckResponse_SERVING)
	states.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	states.SetServingStatus("new", healthpb.HealthCheckResponse_UNKNOWN)
	long := strings.Repeat("l", 300) // its length takes two bytes
	states.SetServingStatus(long, healthpb.HealthCheckResponse_SERVING)
	_, without := grpcServer(t, false)

	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	defer pair.Close()
	secured := credentials.NewTLS(&tls.Config{Certificates: pair.TLS.Certificates})
	_, secure := grpcServer(t, true, grpc.Creds(secured))
	plain := httptest.NewServer(process())
	defer plain.Close()

	for name, row := range map[string]struct {
		contract.GRPC
		want probe.Outcome
		text string
	}{
		"the whole server":       {contract.GRPC{Port: port}, probe.Success, ""},
		"a service":              {contract.GRPC{Port: port, Service: "good"}, probe.Success, ""},
		"a long name":            {contract.GRPC{Port: port, Service: long}, probe.Success, ""},
		"not serving":            {contract.GRPC{Port: port, Service: "bad"}, probe.Failure, `service unhealthy (responded with "NOT_SERVING")`},
		"not known yet":          {contract.GRPC{Port: port, Service: "new"}, probe.Failure, `service unhealthy (responded with "UNKNOWN")`},
		"no such service":        {contract.GRPC{Port: port, Service: "none"}, probe.Failure, "error: health rpc probe failed: gRPC status 5: unknown service"},
		"without health service": {contract.GRPC{Port: without}, probe.Failure, "does not implement the grpc health protocol"},
		"with TLS":               {contract.GRPC{Port: secure, TLS: true}, probe.Success, ""},
		"clear where TLS is":     {contract.GRPC{Port: secure}, probe.Failure, ""},
		"TLS where none is":      {contract.GRPC{Port: port, TLS: true}, probe.Failure, ""},
		"a server of HTTP/1.1":   {contract.GRPC{Port: portOf(t, plain.URL)}, probe.Failure, ""},
		"nobody":                 {contract.GRPC{Port: closedport.On127(t)}, probe.Failure, "error: failed to connect service at"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, Checker{}, contract.Check{GRPC: &row.GRPC})
			if got.Outcome != row.want || !strings.Contains(got.Text, row.text) {
				t.Errorf("got %v %q, want %v %q", got.Outcome, got.Text, row.want, row.text)
			}
		})
	}
}

// The server can be any program that speaks HTTP/2.
func TestGRPCAnswers(t *testing.T) {
	for name, row := range map[string]struct {
		body   string
		status string
		want   probe.Outcome
		text   string
	}{
		"serving":                {"\x00\x00\x00\x00\x02\x08\x01", "0", probe.Success, ""},
		"a field more":           {"\x00\x00\x00\x00\x06\x12\x02ab\x08\x01", "0", probe.Success, ""},
		"fields of each size":    {"\x00\x00\x00\x00\x12\x11abcdefgh\x25abcd\x18\x05\x08\x01", "0", probe.Success, ""},
		"nothing said":           {"\x00\x00\x00\x00\x00", "0", probe.Failure, `"UNKNOWN"`},
		"a state of tomorrow":    {"\x00\x00\x00\x00\x02\x08\x09", "0", probe.Failure, `"9"`},
		"no message":             {"", "0", probe.Failure, "not a single message"},
		"half a message":         {"\x00\x00\x00\x00\x05\x08\x01", "0", probe.Failure, "not a single message"},
		"compressed":             {"\x01\x00\x00\x00\x02\x08\x01", "0", probe.Failure, "compressed"},
		"no number":              {"\x00\x00\x00\x00\x02\x08\x80", "0", probe.Failure, "not a message"},
		"a field beyond the end": {"\x00\x00\x00\x00\x02\x12\x7f", "0", probe.Failure, "not a message"},
		"a length without end":   {"\x00\xff\xff\xff\xff\x08\x01", "0", probe.Failure, "not a single message"},
		"groups":                 {"\x00\x00\x00\x00\x01\x0b", "0", probe.Failure, "not a message"},
		"no status":              {"hello", "", probe.Failure, "without a gRPC status"},
		"refused":                {"", "7", probe.Failure, "gRPC status 7: no%"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, row.body)
				if row.status != "" {
					w.Header().Set(http.TrailerPrefix+"Grpc-Status", row.status)
					w.Header().Set(http.TrailerPrefix+"Grpc-Message", "no%25")
				}
			}))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			defer server.Close()
			got := run(t, Checker{}, contract.Check{GRPC: &contract.GRPC{Port: portOf(t, server.URL)}})
			if got.Outcome != row.want || !strings.Contains(got.Text, row.text) {
				t.Errorf("got %v %q, want %v %q", got.Outcome, got.Text, row.want, row.text)
			}
		})
	}
}

func FuzzHealthState(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02\x08\x01"))
	f.Add([]byte("\x00\x00\x00\x00\x12\x11abcdefgh\x25abcd\x18\x05\x08\x01"))
	f.Add([]byte("\x00\x00\x00\x00\x02\x12\x7f"))
	f.Fuzz(func(_ *testing.T, frame []byte) { _, _ = healthState(frame) })
}

// flood is a server of HTTP/2 that answers a request with as much as the client allows before it has read any of it. It reports how much
// that is, and the largest frame that the client allows.
func flood(t *testing.T, headers string) (port int, sent, largest chan int) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	sent, largest = make(chan int, 1), make(chan int, 1)
	go func() {
		defer close(sent)
		defer close(largest)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		const ofData, ofHeaders, ofSettings, ofWindow = 0, 1, 4, 8
		write := func(kind, flags byte, stream uint32, payload []byte) {
			frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
			frame = binary.BigEndian.AppendUint32(append(frame, flags), stream)
			_, _ = conn.Write(append(frame, payload...))
		}
		ofStream, ofConnection, frame := 65535, 65535, 16<<10
		var head [9]byte
		for kind := byte(ofSettings); kind != ofHeaders; {
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return
			}
			payload := make([]byte, binary.BigEndian.Uint32(head[:4])>>8)
			if _, err := io.ReadFull(conn, payload); err != nil {
				return
			}
			kind = head[3]
			switch {
			case kind == ofWindow && binary.BigEndian.Uint32(head[5:]) == 0:
				ofConnection += int(binary.BigEndian.Uint32(payload))
			case kind == ofSettings:
				for ; len(payload) >= 6; payload = payload[6:] {
					switch value := int(binary.BigEndian.Uint32(payload[2:])); binary.BigEndian.Uint16(payload) {
					case 4:
						ofStream = value
					case 5:
						frame = value
					}
				}
			}
		}
		write(ofSettings, 0, 0, nil)
		write(ofSettings, 1, 0, nil) // acknowledged
		write(ofHeaders, 4, 1, []byte(headers))
		all := min(ofStream, ofConnection)
		for left := all; left > 0; left -= min(left, frame) {
			write(ofData, 0, 1, make([]byte, min(left, frame)))
		}
		sent <- all
		largest <- frame
		_, _ = io.Copy(io.Discard, conn)
	}()
	return portOf(t, l.Addr().String()), sent, largest
}

// A server that sends without end fills a few pages of the agent's memory, and no megabytes.
func TestFlood(t *testing.T) {
	const ok = "\x88" // :status 200
	for name, row := range map[string]struct {
		of   func(port int) contract.Check
		want probe.Outcome
	}{
		"HTTP/2": {func(port int) contract.Check {
			return contract.Check{HTTPGet: &contract.HTTPGet{Port: port, HTTP2: true}}
		}, probe.Success},
		"gRPC": {func(port int) contract.Check { return contract.Check{GRPC: &contract.GRPC{Port: port}} }, probe.Failure},
	} {
		t.Run(name, func(t *testing.T) {
			port, sent, largest := flood(t, ok)
			if got := run(t, Checker{}, row.of(port)); got.Outcome != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
			if n, frame := <-sent, <-largest; n > maxBuffered || n < maxBody || frame > maxBuffered {
				t.Errorf("the server may send %d bytes at once, in frames of %d; want %d to %d", n, frame, maxBody, maxBuffered)
			}
		})
	}
}
