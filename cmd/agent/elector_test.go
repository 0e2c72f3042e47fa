//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
	"github.com/singletonjob/operator/test/tier"
)

// client-go's elector with 15/10/2, scaled to the 2 s of the agents that it competes with.
const (
	electorDuration = 2 * time.Second
	electorDeadline = electorDuration * 10 / 15
	electorRetry    = electorDuration * 2 / 15
)

// elect is a program as users write it today: client-go's leader election around some work, which ends by itself when it must stop or has
// lost the election. Its arguments are the diary, a kubeconfig, the namespace, its identity and its renewDeadline. While it leads it writes
// to the diary with token 0.
func elect() {
	diary, config, ns, identity := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	deadline, err := time.ParseDuration(os.Args[5])
	fail(err)
	file, err := os.OpenFile(diary, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fail(err)
	rest, err := clientcmd.BuildConfigFromFlags("", config)
	fail(err)
	client, err := kubernetes.NewForConfig(rest)
	fail(err)
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	var work sync.Mutex // held while a beat is written
	ended := false
	go func() {
		<-signals
		work.Lock()
		ended = true // client-go requires that the work has ended before the release
		work.Unlock()
		stop()
	}()
	beat := func() bool {
		work.Lock()
		defer work.Unlock()
		if !ended {
			fmt.Fprintf(file, "beat 0 %d %d\n", os.Getpid(), supervise.BootTime())
		}
		return !ended
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: ns, Name: jobName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: max(electorDuration, deadline+100*time.Millisecond), RenewDeadline: deadline, RetryPeriod: electorRetry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				for tick := time.NewTicker(5 * time.Millisecond); beat(); {
					<-tick.C
				}
			},
			OnStoppedLeading: func() { os.Exit(0) },
		},
	})
}

// elector is a running elector.
type elector struct {
	w      *world
	name   string
	run    int
	config string
	// deadline is its renewDeadline.
	deadline time.Duration
	*subprocess.Process
}

func (w *world) elector(name, kubeconfig string) *elector {
	w.t.Helper()
	e := &elector{w: w, name: name, config: kubeconfig, deadline: electorDeadline}
	e.start()
	return e
}

func (e *elector) start() {
	e.w.t.Helper()
	e.run++
	self, err := os.Executable()
	e.w.must(err)
	cmd := exec.Command(self, e.w.diary.path, e.config, e.w.ns, fmt.Sprintf("%s-%d", e.name, e.run), e.deadline.String())
	cmd.Env = []string{roleEnv + "=elector", "GORACE=atexit_sleep_ms=0"}
	e.Process, err = subprocess.Start(cmd)
	e.w.must(err)
	p := e.Process
	e.w.t.Cleanup(func() { p.Stop(0) })
}

func (e *elector) ended() bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}

// holders delivers the holder of each tenure that a watch of the Lease shows.
func (w *world) holders() <-chan string {
	w.t.Helper()
	changed := make(chan string, 1000)
	watch, err := w.client.CoordinationV1().Leases(w.ns).Watch(w.t.Context(), metav1.ListOptions{})
	w.must(err)
	w.t.Cleanup(watch.Stop)
	go func() {
		last, transitions := "", int32(-1)
		for event := range watch.ResultChan() {
			l, ok := event.Object.(*coordinationv1.Lease)
			if !ok || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
				continue
			}
			if *l.Spec.HolderIdentity == last && *l.Spec.LeaseTransitions == transitions {
				continue
			}
			last, transitions = *l.Spec.HolderIdentity, *l.Spec.LeaseTransitions
			changed <- last
		}
	}()
	return changed
}

// One Lease, three of our agents and three client-go electors. Each holder is ended in one of several ways, until the Lease has changed
// hands 200 times, and between all pairs of kinds.
func TestContentionWithClientGo(t *testing.T) {
	tier.Deep(t, "waits for client-go's timing")
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	t.Parallel()
	const changes = 200
	w := newWorld(t)
	w.program = shipped(t) // with the race detector, the leash of a test binary lingers for a second
	config := testConfig()
	config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = seconds(3), seconds(1.5), seconds(0.3)
	holders := w.holders()
	c := &contest{w: w, random: rand.New(rand.NewPCG(1, 2))}
	for _, pod := range []string{"pod-a", "pod-b", "pod-c"} {
		c.agents = append(c.agents, w.candidate(pod, config))
	}
	for _, name := range []string{"elector-a", "elector-b", "elector-c"} {
		c.electors = append(c.electors, w.elector(name, w.plane.Kubeconfig()))
	}
	var seen []string
	crossings := map[string]int{}
	rarest := func() int {
		return min(crossings["agent to agent"], crossings["agent to elector"], crossings["elector to agent"], crossings["elector to elector"])
	}
	const enough = 5 // of each: fewer show nothing
	began := time.Now()
	for len(seen) < changes || rarest() < enough && len(seen) < 4*changes {
		select {
		case holder := <-holders:
			if seen = append(seen, holder); len(seen) > 1 {
				crossings[kindOf(seen[len(seen)-2])+" to "+kindOf(holder)]++
			}
			c.end(holder)
		case <-time.After(patience):
			t.Fatalf("no candidate takes over after %v", seen[max(0, len(seen)-5):])
		}
	}
	t.Logf("%d changes in %v: %v", len(seen), time.Since(began).Round(time.Second), crossings)
	if rarest() < enough {
		t.Errorf("the test shows nothing: %v", crossings)
	}
	w.checkLives()
}

// kindOf distinguishes an agent's identity, pod-a/…, from an elector's, elector-a-1.
func kindOf(holder string) string {
	if strings.HasPrefix(holder, "elector") {
		return "elector"
	}
	return "agent"
}

// contest holds the candidates and their faults.
type contest struct {
	w        *world
	random   *rand.Rand
	agents   []*candidate
	electors []*elector
}

// restart starts the candidates that were ended at the last change or have ended by themselves. An elector that was too busy to renew ends
// by itself.
func (c *contest) restart() {
	for _, e := range c.electors {
		if e.ended() {
			e.start()
		}
	}
	for _, a := range c.agents {
		select {
		case <-a.agent.Done():
			a.start()
		default:
		}
	}
}

// end ends the holder.
func (c *contest) end(holder string) {
	c.restart()
	elapse(c.w.t, time.Duration(c.random.IntN(50))*time.Millisecond)
	if kindOf(holder) == "elector" {
		c.endElector(holder)
		return
	}
	c.endAgent(holder)
}

func (c *contest) endElector(holder string) {
	index := slices.IndexFunc(c.electors, func(e *elector) bool { return strings.HasPrefix(holder, e.name) })
	sig := syscall.SIGTERM
	if c.random.IntN(16) == 0 {
		sig = syscall.SIGKILL
	}
	// Sometimes there is no elector, so that an agent gets a turn.
	ended := c.electors[index : index+1]
	if c.random.IntN(8) == 0 {
		ended = c.electors
	}
	for _, e := range ended {
		c.w.must(e.Signal(sig))
		<-e.Done()
	}
}

func (c *contest) endAgent(holder string) {
	index := slices.IndexFunc(c.agents, func(a *candidate) bool { return strings.HasPrefix(holder, a.pod+"/") })
	ended := c.agents[index : index+1]
	if c.random.IntN(8) == 0 {
		ended = c.agents
	}
	for _, a := range ended {
		sig := syscall.SIGTERM
		if c.random.IntN(16) == 0 {
			sig = syscall.SIGKILL
		}
		a.signal(sig)
		a.exit()
	}
}

// client-go's elector is cut off, and reconnected just after another candidate has taken over. It reads the new holder's Lease, decides
// from its own stale memory that it leads, and blanks the Lease. This does not free the Lease. Our process is killed, because the Lease is
// no longer known to be ours, and all candidates wait, this agent included.
func TestLateReleaseByClientGo(t *testing.T) {
	tier.Deep(t, "waits for client-go's timing")
	t.Parallel()
	const attempts = 20 // a busy machine can miss the 1.5 s in which this can happen
	for range attempts {
		if lateRelease(t) {
			return
		}
	}
	t.Errorf("the late release did not happen in %d attempts", attempts)
}

func lateRelease(t *testing.T) (happened bool) {
	t.Helper()
	w := newWorld(t)
	others := *w
	others.diary = newDiary(t) // a client-go leader is not judged while it is cut off
	network := w.network()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	through := w.plane.Config()
	through.Host = network.URL()
	w.must(controlplane.WriteKubeconfig(kubeconfig, through))
	// The elector's release hangs for one renewDeadline, beginning one renewDeadline after its last renewal. The agent acquires after 3 s.
	e := &elector{w: &others, name: "elector", config: kubeconfig, deadline: 2200 * time.Millisecond}
	e.start()
	config := testConfig()
	config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = seconds(3), seconds(1.5), seconds(0.3)
	a := w.prepare("a", config)
	w.eventually("the elector holds the Lease", func() bool {
		l := w.lease()
		return e.ended() || l.Spec.HolderIdentity != nil && strings.HasPrefix(*l.Spec.HolderIdentity, "elector")
	})
	a.start()
	w.eventually("the agent waits for the elector", func() bool { return e.ended() || strings.Contains(a.lines.String(), "holder=elector") })
	if e.ended() { // the elector was too busy to renew
		return false
	}
	network.Cut()
	tenure := number(t, a.await("acquired "), "tenure")
	w.must(network.Heal())
	<-e.Done() // it has released the Lease, or failed to
	for end := time.Now().Add(10 * time.Second); int64(*w.lease().Spec.LeaseTransitions) == tenure; elapse(t, 20*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	why, lost := a.awaitAt("reason=")
	if !strings.Contains(why, "LeaseLost") { // the elector was too busy to renew
		return false
	}
	_, again := a.awaitAt("acquired")
	t.Logf("client-go blanked our Lease; it was ours again after %v", time.Duration(again-lost))
	w.checkLives()
	return true
}
