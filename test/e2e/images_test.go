//go:build linux

package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	nethttp "net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/cluster"
)

// hub is a registry on the host, which the operator asks. Nodes have its images already.
type hub struct {
	*trial
	address string
	inner   nethttp.Handler
	server  *nethttp.Server
	layer   v1.Layer
}

// newHub starts the registry, and installs the operator with the right to ask it.
func (x *trial) newHub() *hub {
	x.Helper()
	h := &hub{trial: x, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	h.listen(bed.Lab.Host + ":0")
	x.Cleanup(func() {
		h.server.Close()
		bed.distrust()
	})
	dir := x.TempDir()
	workload := filepath.Join(dir, "workload")
	x.must(cluster.Build(x.ctx, "./test/workload", workload))
	busybox, err := exec.LookPath("busybox")
	x.must(err)
	h.layer, err = programLayer(workload, busybox)
	x.must(err)
	x.must(bed.install(x.ctx, "entrypoint.insecureRegistries={"+h.address+"}"))
	return h
}

func (h *hub) listen(address string) {
	h.Helper()
	listener, err := net.Listen("tcp", address)
	h.must(err)
	h.address, h.server = listener.Addr().String(), &nethttp.Server{Handler: h.inner, ReadHeaderTimeout: time.Minute}
	go func() { _ = h.server.Serve(listener) }()
}

// programLayer has /workload, a shell, and a script that becomes /workload.
func programLayer(workload, busybox string) (v1.Layer, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	add := func(name string, mode int64, data []byte) error {
		header := &tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg}
		if data == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, dir := range []string{"bin/", "srv/"} {
		if err := add(dir, 0o755, nil); err != nil {
			return nil, err
		}
	}
	if err := add("tmp/", 0o1777, nil); err != nil {
		return nil, err
	}
	for to, from := range map[string]string{"workload": workload, "bin/sh": busybox} {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := add(to, 0o755, data); err != nil {
			return nil, err
		}
	}
	if err := add("entry.sh", 0o755, []byte("#!/bin/sh\nexec /workload \"$@\"\n")); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
}

// push gives an image to the registry and to all nodes, and returns its name.
func (h *hub) push(repository string, config v1.Config) string {
	h.Helper()
	image, err := mutate.AppendLayers(empty.Image, h.layer)
	h.must(err)
	file, err := image.ConfigFile()
	h.must(err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	image, err = mutate.ConfigFile(image, file)
	h.must(err)
	tag, err := name.NewTag(h.address+"/"+repository+":v1", name.Insecure)
	h.must(err)
	h.must(remote.Write(tag, image))
	archive := filepath.Join(h.TempDir(), repository+".tar")
	h.must(tarball.WriteToFile(archive, tag, image))
	h.must(bed.Lab.Image(h.ctx, archive))
	return tag.String()
}

// TestAnOrdinaryTemplate: a Deployment as charts bring it becomes a SingletonJob by its kind and its nesting. Its registry then fails
// during each of ten rollouts, and no process stops.
func TestAnOrdinaryTemplate(t *testing.T) {
	x := begin(t)
	x.needLab()
	h := x.newHub()
	image := h.push("ordinary", v1.Config{Entrypoint: []string{"/entry.sh"}, User: "65532", WorkingDir: "/srv", Env: []string{"PATH=/bin"}})
	j := &job{trial: x, name: "billing", key: client.ObjectKey{Namespace: x.namespace, Name: "billing"}}
	helm, err := bed.Program(x.ctx, "helm")
	x.must(err)
	settings := []string{
		"install", j.name, "testdata/ordinary", "--namespace=" + x.namespace, "--set=image.repository=" + strings.TrimSuffix(image, ":v1"),
		"--set=sink=" + bed.SinkURL(), "--set=resource=" + string(fence.ResourceOf(x.namespace, j.name)),
	}
	out, err := bed.Run(x.ctx, append([]string{helm}, settings...)...)
	x.Logf("helm install: %s", out)
	x.must(err)
	x.Log(x.kubectl("wait", "--for=condition=Ready", "singletonjob/"+j.name, "--timeout=4m"))
	j.awaitSettled()
	j.awaitWriteAfter(0)
	x.Log(x.kubectl("get", "singletonjobs"))

	for round := range 10 {
		before := j.get()
		h.server.Close()
		j.update(func(o *v1alpha1.SingletonJob) {
			metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", fmt.Sprint(round))
		})
		j.awaitStatus("the status says that the registry is gone", func(o *v1alpha1.SingletonJob) bool {
			c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing)
			return c != nil && c.Reason == v1alpha1.ReasonRegistryUnreachable && c.ObservedGeneration == o.Generation
		})
		j.awaitFurtherWrites()
		if now := j.get().Status; now.FencingToken != before.Status.FencingToken || now.ActivePod != before.Status.ActivePod {
			x.Errorf("without a registry, %s with token %d became %s with token %d", before.Status.ActivePod, before.Status.FencingToken, now.ActivePod, now.FencingToken)
		}
		h.listen(h.address)
		j.awaitStatus("it is rolled out", func(o *v1alpha1.SingletonJob) bool {
			return settled(o) && o.Status.Handovers == before.Status.Handovers+1
		})
	}
	if after := j.get().Status; after.Failovers != 0 || after.Handovers != 10 {
		x.Errorf("ten rollouts have cost %d failovers and %d handovers", after.Failovers, after.Handovers)
	}
	j.check(false)
}

// TestImagesBehaveAsInAPlainPod: what an image says of its program, user, directory and environment is so in a SingletonJob, too.
func TestImagesBehaveAsInAPlainPod(t *testing.T) {
	x := begin(t)
	x.needLab()
	h := x.newHub()
	env := []string{"PATH=/bin", "GREETING=hello world", "EMPTY="}
	for repository, c := range map[string]struct {
		config v1.Config
		args   []string
	}{
		"script":     {config: v1.Config{Entrypoint: []string{"/entry.sh"}, Cmd: []string{"whoami", "from cmd"}, User: "1000:1001", WorkingDir: "/tmp", Env: env}},
		"shell-form": {config: v1.Config{Entrypoint: []string{"/bin/sh", "-c", "exec /workload whoami $GREETING"}, User: "65532", WorkingDir: "/srv", Env: env}},
		"distroless": {config: v1.Config{Entrypoint: []string{"/workload", "whoami", "$HOME", "$(GREETING)"}, User: "4711", Env: env}},
		"with-args":  {config: v1.Config{Entrypoint: []string{"/workload", "whoami"}, Cmd: []string{"replaced"}, User: "1000", WorkingDir: "/bin", Env: env}, args: []string{"--own", "$(GREETING)"}},
	} {
		image := h.push(repository, c.config)
		yes, no := true, false
		spec := corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "app", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: c.args, Env: []corev1.EnvVar{{Name: "OWN", Value: "set"}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		}
		plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: "plain-" + repository}, Spec: *spec.DeepCopy()}
		x.must(bed.Client.Create(x.ctx, plain))
		j := x.createNamed(repository, cluster.ClientGo, func(o *v1alpha1.SingletonJob) { o.Spec.Template.Spec = spec })
		active := j.awaitActiveAfter(0).Status.ActivePod
		if diff := cmp.Diff(x.whoami(plain.Name), x.whoami(active)); diff != "" {
			x.Errorf("%s acts differently (-as a Pod +as a SingletonJob):\n%s", repository, diff)
		}
	}
}

// whoami is what the process of a pod has told of itself, without what is each pod's own.
func (x *trial) whoami(pod string) (who map[string]any) {
	x.Helper()
	x.await("the process of "+pod+" tells who it is", func() (bool, any, error) {
		out, err := bed.Kubectl(x.ctx, "--namespace", x.namespace, "logs", pod, "-c", "app")
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "{") {
				return true, nil, json.Unmarshal([]byte(line), &who)
			}
		}
		return false, err, nil // the container may not have begun
	})
	env, _ := who["env"].(map[string]any)
	for key := range env {
		if key == "HOSTNAME" || key == fence.EnvToken || strings.HasPrefix(key, "SINGLETONJOB_") {
			delete(env, key)
		}
	}
	x.Logf("%s: %v", pod, who)
	return who
}
