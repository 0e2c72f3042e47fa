//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/workload/ask"
)

const (
	// name is the namespace's, the job's and so the Service's.
	name = "bench-service"
	// port is where the process answers.
	port = 8080
	// settles bounds each wait: for a change to be over, and for what it left to be whole again.
	settles = 3 * time.Minute
	// unattended is how long the client is watched while no operator runs.
	unattended = 5 * time.Second
	// remembered is what the client asked before a change that belongs to it.
	remembered = 10 * time.Second
	// everyTenth handover is a rollout.
	everyTenth = 10
)

// A trial is the whole run: one job, one client, and changes one after another.
type trial struct {
	cluster  *cluster.Cluster
	progress io.Writer
	witness  witness
	result   Result
	counted  int // slices that were looked at for two endpoints
}

func (t *trial) say(format string, args ...any) { _, _ = fmt.Fprintf(t.progress, format+"\n", args...) }

// setUp has the operator and the client on the first node, and the candidates on the others: what befalls those befalls nobody else.
func (t *trial) setUp(ctx context.Context, image string) error {
	c, first := t.cluster, t.cluster.Lab.Nodes[0]
	if err := errors.Join(c.Lab.Fault(ctx, "heal"), c.Install(ctx, "charts/singletonjob", image, `nodeSelector.kubernetes\.io/hostname=`+first)); err != nil {
		return err
	}
	if err := c.CreateNamespace(ctx, name, ""); err != nil {
		return err
	}
	t.witness.follow(ctx, c.Client)
	if err := c.Client.Create(ctx, t.job(first)); err != nil {
		return err
	}
	if err := t.settled(ctx, 0); err != nil {
		return err
	}
	var service corev1.Service
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, &service); err != nil {
		return err
	}
	report, err := t.witness.receive(ctx, c.Lab.Host)
	if err != nil {
		return err
	}
	asks := cluster.RestrictedPod(corev1.Container{Name: "client", Image: c.Image, Command: []string{"/workload", "client"}, Env: []corev1.EnvVar{
		{Name: "URL", Value: "http://" + service.Spec.ClusterIP}, {Name: "REPORT", Value: report},
	}})
	asks.NodeSelector = map[string]string{corev1.LabelHostname: first}
	if err := c.Client.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "client"}, Spec: asks}); err != nil {
		return err
	}
	return t.answered(ctx, 0)
}

func (t *trial) job(without string) *v1alpha1.SingletonJob {
	job := t.cluster.Job(name, name, cluster.ClientGo)
	job.Spec.Service = &v1alpha1.ServiceSpec{Ports: []v1alpha1.ServicePort{{Port: 80, TargetPort: new(intstr.FromInt32(port))}}}
	job.Spec.Strategy.MinReadySeconds = new(int32(1))
	pod := &job.Spec.Template.Spec
	pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "LISTEN", Value: ":" + strconv.Itoa(port)})
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{without}},
		}}},
	}}}
	return job
}

func (t *trial) get(ctx context.Context) (*v1alpha1.SingletonJob, error) {
	var job v1alpha1.SingletonJob
	return &job, t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, &job)
}

// await waits for as long as anything may take.
func await(ctx context.Context, what string, is func() (bool, any, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return observe.Await(ctx, what, is)
}

// settled waits until a tenure with a later token has its standby, and nothing is under way.
func (t *trial) settled(ctx context.Context, token fence.Token) error {
	return await(ctx, "the job to be protected and up to date", func() (bool, any, error) {
		job, err := t.get(ctx)
		if err != nil {
			return false, nil, err
		}
		s := job.Status
		progressing := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing)
		return s.FencingToken > int64(token) && s.ObservedGeneration == job.Generation && progressing != nil && progressing.Reason == v1alpha1.ReasonUpToDate &&
			meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionProtected), s, nil
	})
}

// answered waits until both clients have received a later token, and the endpoint is that pod alone.
func (t *trial) answered(ctx context.Context, token fence.Token) error {
	return await(ctx, fmt.Sprintf("answers with a token after %d", token), func() (bool, any, error) {
		f := t.witness.facts()
		var heard [2]string   // by each client, the answering process
		var last [2]ask.Asked // of each
		for _, a := range f.asked {
			client := map[bool]int{true: 1}[a.Kept]
			last[client] = a
			if a.Who.Token > token {
				heard[client] = a.Who.Pod
			}
		}
		n := len(f.behind)
		return heard[0] != "" && heard[0] == heard[1] && n > 0 && slices.Equal(f.behind[n-1].pods, heard[:1]), last, nil
	})
}

func (t *trial) lives(ctx context.Context) ([]observe.Life, error) {
	resource := fence.ResourceOf(name, name)
	attempts, err := t.cluster.Attempts(ctx, resource)
	return observe.Lives(attempts, resource, true), err
}

func lastToken(lives []observe.Life) fence.Token {
	if len(lives) == 0 {
		return 0
	}
	return slices.Max(lives[len(lives)-1].Tokens)
}

// all makes the changes. One that fails ends it: the next would begin from nobody knows where.
func (t *trial) all(ctx context.Context, o *options) error {
	for i := range o.handovers {
		kind := handovers[0]
		if i%everyTenth == everyTenth-1 {
			kind = handovers[1]
		}
		if err := t.change(ctx, kind); err != nil {
			return err
		}
	}
	for i := range o.failovers {
		if err := t.change(ctx, failovers[i%len(failovers)]); err != nil {
			return err
		}
	}
	for range o.crashes {
		if err := t.change(ctx, crash); err != nil {
			return err
		}
	}
	for i := range o.out {
		if err := t.outage(ctx, outages[i%len(outages)]); err != nil {
			return err
		}
	}
	return nil
}

// change does something to the active pod and judges what came of it.
func (t *trial) change(ctx context.Context, k kind) error {
	begun, active, err := t.ready(ctx)
	if err != nil {
		return err
	}
	if err := k.do(ctx, t, active); err != nil {
		return fmt.Errorf("%s: %w", k.title, err)
	}
	token := lastToken(begun)
	if err := t.answered(ctx, token); err != nil {
		return fmt.Errorf("%s: %w", k.title, err)
	}
	if k.undo != nil {
		if err := k.undo(ctx, t, active); err != nil {
			return fmt.Errorf("after %s: %w", k.title, err)
		}
	}
	if err := t.settled(ctx, token); err != nil {
		return fmt.Errorf("after %s: %w", k.title, err)
	}
	f := t.witness.facts()
	if f.lives, err = t.lives(ctx); err != nil {
		return err
	}
	t.count(f.behind)
	for i := len(begun); i < len(f.lives); i++ { // one, unless the next one ended too
		c, err := judge(k.title, f.lives[i-1], f.lives[i], f)
		if err != nil {
			return fmt.Errorf("%s: %w", k.title, err)
		}
		t.result.Changes = append(t.result.Changes, c)
		t.say("%3d %s: no answer for %v, kept %v, no process for %v, endpoint %v after the Lease, none for %v, client's node %v after both, lost %v, wrong %d",
			len(t.result.Changes), k.title, round(c.Client), round(c.Kept), round(c.Process), round(c.Endpoint), round(c.Empty), round(c.Proxy), c.Lost, c.Wrong)
	}
	return nil
}

// count looks for two endpoints at a time.
func (t *trial) count(behind []behindSeen) {
	for _, b := range behind[t.counted:] {
		if len(b.pods) > 1 {
			t.result.Several++
		}
	}
	t.counted = len(behind)
}

// ready waits for a random moment between two renewals, and finds the active pod. After a recent fault, the kubelet may only now have
// reported that a standby is not ready.
func (t *trial) ready(ctx context.Context) ([]observe.Life, *corev1.Pod, error) {
	if err := onlab.Sleep(ctx, 2*time.Second+rand.N(2*time.Second)); err != nil {
		return nil, nil, err
	}
	if err := t.settled(ctx, 0); err != nil {
		return nil, nil, err
	}
	t.witness.forget(fencetest.Boottime() - remembered)
	lives, err := t.lives(ctx)
	if err != nil {
		return nil, nil, err
	}
	var pod corev1.Pod
	key := client.ObjectKey{Namespace: name, Name: podOf(lives[len(lives)-1])}
	return lives, &pod, t.cluster.Client.Get(ctx, key, &pod)
}

// outage changes the process while no operator runs, watches the client, and starts one.
func (t *trial) outage(ctx context.Context, k kind) error {
	begun, active, err := t.ready(ctx)
	if err != nil {
		return err
	}
	if err := t.operators(ctx, 0); err != nil {
		return err
	}
	if err := k.do(ctx, t, active); err != nil {
		return fmt.Errorf("%s: %w", k.title, err)
	}
	var lives []observe.Life
	err = await(ctx, "another process", func() (bool, any, error) {
		lives, err = t.lives(ctx)
		return len(lives) > len(begun) && lives[len(lives)-1].Accepted > 0, nil, err
	})
	if err != nil {
		return err
	}
	if err := onlab.Sleep(ctx, unattended); err != nil {
		return err
	}
	started := fencetest.Boottime()
	if err := t.operators(ctx, 2); err != nil {
		return err
	}
	if err := errors.Join(t.answered(ctx, lastToken(begun)), t.settled(ctx, lastToken(begun))); err != nil {
		return err
	}
	o := judgeOutage(k.title, lives[len(begun)-1], lives[len(lives)-1], t.witness.facts(), started)
	t.result.Outages = append(t.result.Outages, o)
	t.say("%s", o)
	return nil
}

// operators scales them, and waits only for the last one to be gone.
func (t *trial) operators(ctx context.Context, replicas int) error {
	if _, err := t.cluster.Kubectl(ctx, "scale", "deployment/"+cluster.Release, "--namespace", cluster.SystemNamespace, "--replicas="+strconv.Itoa(replicas)); err != nil {
		return err
	}
	if replicas > 0 {
		return nil
	}
	return await(ctx, "the operator to be gone", func() (bool, any, error) {
		var deployment appsv1.Deployment
		var pods corev1.PodList
		err := errors.Join(t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: cluster.SystemNamespace, Name: cluster.Release}, &deployment),
			t.cluster.Client.List(ctx, &pods, client.InNamespace(cluster.SystemNamespace)))
		return err == nil && deployment.Status.Replicas == 0 && len(pods.Items) == 0, len(pods.Items), err
	})
}

// patch asks the job for a handover.
func (t *trial) patch(ctx context.Context, change func(*v1alpha1.SingletonJob)) error {
	job, err := t.get(ctx)
	if err != nil {
		return err
	}
	before := job.DeepCopy()
	change(job)
	return t.cluster.Client.Patch(ctx, job, client.MergeFrom(before))
}

func (t *trial) switchOver(ctx context.Context) error {
	return t.patch(ctx, func(job *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, contract.SwitchoverAnnotation, "*@"+strconv.FormatInt(job.Status.FencingToken, 10))
	})
}

func (t *trial) rollOut(ctx context.Context) error {
	return t.patch(ctx, func(job *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&job.Spec.Template.ObjectMeta, "rolled-out-after", strconv.FormatInt(job.Status.FencingToken, 10))
	})
}
