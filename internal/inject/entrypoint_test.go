package inject

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/tier"
)

// withoutCommand is a job without a command whose image's entrypoint is known.
func withoutCommand(t testing.TB, args []string, entrypoint, cmd []string) *v1alpha1.SingletonJob {
	t.Helper()
	job := jobs(t)["minimal"]
	app := &job.Spec.Template.Spec.Containers[0]
	app.Command, app.Args = nil, args
	job.Status.Entrypoint = &v1alpha1.Entrypoint{TemplateHash: Hash(job), Image: app.Image, Command: entrypoint, Args: cmd}
	return job
}

// TestEntrypoint: the process is the one that a container runtime would run for this image and Pod.
func TestEntrypoint(t *testing.T) {
	type list = []string
	for name, c := range map[string]struct{ args, entrypoint, cmd, command, rest list }{
		"both":                        {nil, list{"/e"}, list{"c"}, list{"/e"}, list{"c"}},
		"args in place of CMD":        {list{"a"}, list{"/e"}, list{"c"}, list{"/e"}, list{"a"}},
		"no CMD":                      {nil, list{"/e", "x"}, nil, list{"/e", "x"}, nil},
		"no ENTRYPOINT":               {nil, nil, list{"/c", "d"}, list{"/c", "d"}, nil},
		"args without an ENTRYPOINT":  {list{"/a", "b"}, nil, list{"/c"}, list{"/a", "b"}, nil},
		"args alone":                  {list{"/a"}, nil, nil, list{"/a"}, nil},
		"variables of the image":      {list{"$(A)"}, list{"/bin/sh", "-c", "$(cat x) $Y $$"}, nil, list{"/bin/sh", "-c", "$$(cat x) $$Y $$$$"}, list{"$(A)"}},
		"a variable that is ours":     {nil, list{"$(FENCING_TOKEN)"}, nil, list{"$$(FENCING_TOKEN)"}, nil},
		"the pod's, which it may use": {list{"$(FENCING_TOKEN)"}, list{"/e"}, nil, list{"/e"}, list{"a mark of FENCING_TOKEN"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := withoutCommand(t, c.args, c.entrypoint, c.cmd)
			if Unknown(job) {
				t.Fatal("it is not known what runs")
			}
			gated := gatedOf(t, mustPod(t, job, 0, settings))
			for i, arg := range gated.Args {
				gated.Args[i] = contract.Expand(arg, marksOf(t, gated), func(name string) (string, bool) { return "a mark of " + name, true })
			}
			want := append([]string{contract.AgentPath, contract.AgentRun, "--"}, c.command...)
			if diff := cmp.Diff([][]string{want, c.rest}, [][]string{gated.Command, gated.Args}); diff != "" {
				t.Errorf("command and args (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheImagesStopSignal: it ends the process, unless the template names another signal.
func TestTheImagesStopSignal(t *testing.T) {
	for name, c := range map[string]struct {
		image, template, want string
		command               []string
	}{
		"neither":           {want: ""},
		"the image's":       {image: "SIGQUIT", want: "SIGQUIT"},
		"the template's":    {template: "SIGUSR1", want: "SIGUSR1"},
		"both":              {image: "SIGQUIT", template: "SIGUSR1", want: "SIGUSR1"},
		"it sets a command": {image: "SIGQUIT", command: []string{"/c"}, want: ""},
	} {
		job := withoutCommand(t, nil, []string{"/e"}, nil)
		container := &job.Spec.Template.Spec.Containers[0]
		job.Status.Entrypoint.StopSignal, container.Command = c.image, c.command
		container.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		if c.template != "" {
			container.Lifecycle.StopSignal = new(corev1.Signal(c.template))
		}
		if c.image == "" && c.template == "" {
			container.Lifecycle = nil
		}
		job.Status.Entrypoint.TemplateHash = EntrypointHash(job)
		config, err := contract.DecodeConfig(gatedOf(t, mustPod(t, job, 0, settings)).Env[0].Value)
		if err != nil {
			t.Fatal(err)
		}
		if config.StopSignal != c.want || (config.Hooks.PreStop == nil) != (c.want == "" && c.command == nil) {
			t.Errorf("%s: %q, want %q; hooks %+v", name, config.StopSignal, c.want, config.Hooks)
		}
	}
}

// TestImageArgumentsAreNotExpanded: neither kubelet nor agent expands variables in the image's arguments.
func TestImageArgumentsAreNotExpanded(t *testing.T) {
	seed := tier.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"$", "$$", "(", ")", "$(FENCING_TOKEN)", "$(SINGLETONJOB_POD)", "$(HOME)", "FENCING_TOKEN", "x", "é"}
	known := func(string) (string, bool) { return "replaced", true }
	job := withoutCommand(t, nil, nil, []string{"/c"})
	for range 5000 {
		word := ""
		for range 1 + r.IntN(6) {
			word += pieces[r.IntN(len(pieces))]
		}
		job.Status.Entrypoint.Command, job.Status.Entrypoint.Args = []string{"/e", word}, []string{word}
		gated := gatedOf(t, mustPod(t, job, 0, settings))
		for _, sent := range []string{gated.Command[len(gated.Command)-1], gated.Args[0]} {
			kubelet := contract.ExpandAll(sent, known)
			if got := contract.Expand(kubelet, marksOf(t, gated), known); got != word {
				t.Fatalf("seed %d: %q is sent as %q and arrives as %q", seed, word, sent, got)
			}
		}
	}
}

// TestUnknownEntrypoint: the operator creates no Pod from a result for another template, or from an image that runs nothing.
func TestUnknownEntrypoint(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.SingletonJob){
		"nothing was found":         func(job *v1alpha1.SingletonJob) { job.Status.Entrypoint = nil },
		"another template's":        func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Image = "other" },
		"it runs nothing":           func(job *v1alpha1.SingletonJob) { job.Status.Entrypoint.Command = nil },
		"another job's of the name": func(job *v1alpha1.SingletonJob) { job.UID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			job := withoutCommand(t, nil, []string{"/e"}, nil)
			change(job)
			if pod, err := Pod(job, 0, settings); !Unknown(job) || err == nil || pod != nil {
				t.Errorf("it is unknown: %v, and the pod is %v, %v", Unknown(job), pod, err)
			}
		})
	}
	if job := jobs(t)["minimal"]; Unknown(job) {
		t.Error("with a command there is nothing to know")
	}
}

// TestEntrypointCausesNoRollout: the hash does not depend on the look-up.
func TestEntrypointCausesNoRollout(t *testing.T) {
	a, b := withoutCommand(t, nil, []string{"/a"}, nil), withoutCommand(t, nil, []string{"/b"}, nil)
	if Hash(a) != Hash(b) {
		t.Errorf("%s and %s", Hash(a), Hash(b))
	}
}
