package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/subprocess"
)

// execution is a command that a kubelet is asked to execute.
type execution struct {
	asked                         url.Values
	stdin, stdout, status, resize io.ReadWriteCloser
}

// kubelet is an API server with the job billing, whose Pod billing-0 is active. It passes on the commands to execute there.
func kubelet(t *testing.T, run func(*execution)) (server string) {
	t.Helper()
	resource := func(group, version, name, kind string) *metav1.APIResourceList {
		return &metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: strings.TrimPrefix(group+"/"+version, "/"),
			APIResources: []metav1.APIResource{{Name: name, Kind: kind, Namespaced: true}},
		}
	}
	job := &v1alpha1.SingletonJob{TypeMeta: metav1.TypeMeta{Kind: v1alpha1.Kind, APIVersion: v1alpha1.GroupVersion.String()}}
	job.Namespace, job.Name, job.Status.ActivePod = "prod", "billing", "billing-0"
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
	pod.Namespace, pod.Name = "prod", "billing-0"
	core, jobs := "/api/v1", "/apis/"+v1alpha1.GroupVersion.String()
	group := func(group, version string) metav1.APIGroup {
		v := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version}
		return metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
	}
	objects := map[string]any{
		"/api": &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{
			group(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version), group("coordination.k8s.io", "v1"),
		}},
		core: resource("", "v1", "pods", "Pod"), jobs: resource(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "singletonjobs", v1alpha1.Kind),
		"/apis/coordination.k8s.io/v1":                  resource("coordination.k8s.io", "v1", "leases", "Lease"),
		jobs + "/namespaces/prod/singletonjobs/billing": job, core + "/namespaces/prod/pods/billing-0": &pod,
		core + "/namespaces/prod/pods": &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{pod}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if strings.HasSuffix(in.URL.Path, "/billing-0/exec") {
			execute(t, out, in, run)
			return
		}
		object, known := objects[in.URL.Path]
		out.Header().Set("Content-Type", "application/json")
		if !known {
			status := apierrors.NewNotFound(schema.GroupResource{}, in.URL.Path).Status()
			object = &status
			out.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(out).Encode(object)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func execute(t *testing.T, out http.ResponseWriter, in *http.Request, run func(*execution)) {
	channels := []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	_, streams, err := conn.Open(out, in)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	run(&execution{in.URL.Query(), streams[0], streams[1], streams[3], streams[4]})
}

// end sends the exit status of the command.
func (e *execution) end(status int) {
	told := metav1.Status{Status: metav1.StatusSuccess}
	if status != 0 {
		told = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(status)}},
		}}
	}
	raw, _ := json.Marshal(told)
	_, _ = e.status.Write(raw)
}

// pty is a terminal with a number of columns and lines: the user's side and the program's side.
func pty(t *testing.T, columns, lines uint16) (person, program *os.File) {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	person = open("/dev/ptmx")
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	if err != nil {
		t.Fatal(err)
	}
	program = open(fmt.Sprint("/dev/pts/", n))
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// TestExecOnATerminal: the command has a terminal of the same size. Each key reaches it as it is typed, Ctrl-C too, and the local
// terminal is restored afterwards.
func TestExecOnATerminal(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	server := kubelet(t, func(e *execution) {
		var size struct{ Width, Height int }
		if err := json.NewDecoder(e.resize).Decode(&size); err != nil {
			t.Errorf("the size of the terminal: %v", err)
		}
		fmt.Fprintf(e.stdout, "%q on a terminal: %s, of %d columns, %d lines\r\n", e.asked["command"], e.asked.Get("tty"), size.Width, size.Height)
		key := make([]byte, 1)
		if _, err := io.ReadFull(e.stdin, key); err != nil {
			t.Errorf("what is typed: %v", err)
		}
		fmt.Fprintf(e.stdout, "typed %q\r\n", key)
		e.end(7)
	})
	person, program := pty(t, 100, 30)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	args := []string{"exec", "billing", "-it", "-n", "prod", "-s", server, "--", "sh", "-l"}
	cmd.Env = append(os.Environ(), commandLine+"="+strings.Join(args, "\n"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p, err := subprocess.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan *unix.Termios)
	go func() {
		<-p.Done()
		after, _ := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		_ = program.Close() // ends the user's output
		ended <- after
	}()

	seen := newReader(person)
	seen.until(t, `["sh" "-l"] on a terminal: true, of 100 columns, 30 lines`)
	if _, err := person.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	seen.until(t, `typed "\x03"`)
	if after := <-ended; after == nil || *after != *before {
		t.Errorf("the terminal was left as %+v, and was %+v", after, before)
	}
	if status := cmd.ProcessState.ExitCode(); status != 7 {
		t.Errorf("it ended with %d, want 7, the status of the command: %v", status, p.Err())
	}
}

// TestExecIsInterrupted: if stdin is no terminal, only the context reports an interrupt.
func TestExecIsInterrupted(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	server := kubelet(t, func(e *execution) {
		_, _ = io.WriteString(e.stdout, "begun\n")
		given := time.AfterFunc(time.Minute, func() { e.end(0) }) // otherwise a caller could wait indefinitely
		defer given.Stop()
		_, _ = io.Copy(io.Discard, e.stdin) // until the connection ends
	})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	reader, writer := io.Pipe()
	ended := make(chan int)
	go func() {
		args := []string{"exec", "billing", "-n", "prod", "-s", server, "--", "sleep", "inf"}
		status := Run(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: writer, ErrOut: io.Discard})
		writer.Close()
		ended <- status
	}()
	seen := newReader(reader)
	seen.until(t, "begun")
	interrupt()
	go seen.drain()
	if status := <-ended; status != ExitInterrupted {
		t.Errorf("interrupted, it ended with %d", status)
	}
}
