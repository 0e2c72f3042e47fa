//go:build linux

package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// Everything that runs before and beside a process, in order and with its token: a command before it, a request after its start, and a
// request before its signal. The process lives until the last request is answered, whatever the answer. The next process starts after it is
// dead.
func TestHooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer := make(chan struct{})
	var asked []string // between requests that follow each other
	heard := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		heard <- r.URL.Path
		if r.URL.Path == "/stops" {
			select {
			case <-answer:
			case <-r.Context().Done():
			}
			rw.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	address, _ := server.Listener.Addr().(*net.TCPAddr)
	ask := func(path string) *contract.Hook {
		return &contract.Hook{HTTPGet: &contract.HTTPGet{Port: address.Port, Path: path}}
	}
	config := steadyConfig()
	config.GracePeriod = seconds(3600)
	config.PreActivate = &contract.PreActivate{
		Exec:    []string{"sh", "-c", `echo "prepares $0 $FENCING_TOKEN" >>"$1"`, "$(FENCING_TOKEN)", w.diary.path},
		Timeout: contract.Duration(patience),
	}
	config.Hooks = contract.Hooks{PostStart: ask("/started"), PreStop: ask("/stops")}
	a := w.prepare("a", config)
	a.env = append(a.env, contract.PodIPEnv+"="+address.IP.String())
	a.start()
	token := a.acquired()
	a.await("prepared")
	w.awaitBeat(token)
	asked = append(asked, <-heard)
	word := strconv.FormatInt(token, 10)
	if words := w.words(); len(words) != 1 || words[0] != "prepares "+word+" "+word {
		t.Errorf("what runs first wrote %q, want its token %s twice", words, word)
	}

	b := w.standby("b", steadyConfig())
	a.signal(syscall.SIGTERM)
	asked = append(asked, <-heard)
	beats := func() int64 { return w.lives()[0].last }
	before := beats()
	w.eventually("the process lives while it is asked", func() bool { return beats() > before })
	close(answer)
	if code := a.exit(); code != 0 {
		t.Errorf("exit code %d; its log:\n%s", code, a.lines)
	}
	w.acts(b)
	if got := strings.Join(asked, " "); got != "/started /stops" || strings.Contains(a.lines.String(), "hook failed") {
		t.Errorf("asked for %s; its log:\n%s", got, a.lines)
	}
	w.checkLives()
}

// contained makes the agent PID 1, as in a container, so that signals from this test come from outside. Its Pod exists.
func (c *candidate) contained() {
	c.w.t.Helper()
	pod, err := c.w.client.CoreV1().Pods(c.w.ns).Create(c.w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.pod},
		Spec:       corev1.PodSpec{NodeName: "node-of-" + c.pod, Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}, metav1.CreateOptions{})
	c.w.must(err)
	c.env = append(c.env, contract.PodUIDEnv+"="+string(pod.UID))
	c.attr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}, // there
	}
	c.by = []string{"sh", "-ec", `mount -t proc proc /proc; exec "$@"`, "sh"}
}

// The runtime stops a container from outside, with the stop signal of its image: preStop runs to its end, the process gets the signal, and
// the tenure ends in order. The same signal from inside the container is for the process.
func TestStopSignalOfTheImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	config.GracePeriod = seconds(3600)
	config.Hooks.PreStop = &contract.Hook{Exec: []string{"sh", "-c", `echo "drains" >>"$0"`, w.diary.path}}
	a := w.prepare("a", config)
	a.contained()
	a.start()
	w.awaitBeat(a.acquired())
	b := w.standby("b", steadyConfig())
	said := func() string { return strings.Join(w.words(), ", ") }
	a.signal(syscall.SIGQUIT)
	w.eventually("preStop has run, and the process has the signal", func() bool { return strings.Contains(said(), "signal-") })
	if said := said(); !strings.HasPrefix(said, "drains, signal-quit") {
		t.Errorf("one after the other: %s; want the hook and then the signal", said)
	}
	a.signal(syscall.SIGTERM) // the process continues after the other signal
	if code := a.exit(); code != 0 || !strings.Contains(a.lines.String(), "PodTerminating") {
		t.Errorf("exit code %d; its log:\n%s", code, a.lines)
	}
	w.acts(b)
	w.checkLives()
}

// A Pod is deleted with less time than its template has. The process gets its signal although preStop hangs, and the Lease is free when the
// process has been killed. With the template's time, this test would end by its own patience.
func TestThePodIsDeletedWithLessTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	config.GracePeriod = seconds(3600)
	config.Hooks.PreStop = &contract.Hook{Exec: []string{"sleep", "3600"}}
	a := w.prepare("a", config)
	a.contained()
	a.start("stubborn")
	w.awaitBeat(a.acquired())
	b := w.standby("b", steadyConfig())
	pods := w.client.CoreV1().Pods(w.ns)
	w.must(pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(1000))}))
	a.signal(syscall.SIGTERM)
	a.await("grace period shortened", "to=16m40s")
	w.must(pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(8))}))
	if code := a.exit(); code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit code %d; its log:\n%s", code, a.lines)
	}
	a.await("released", "reason=PodTerminating")
	if said := strings.Join(w.words(), ", "); !strings.HasPrefix(said, "signal-") {
		t.Errorf("the process has met %q, want its signal first", said)
	}
	w.acts(b)
	w.checkLives()
}
