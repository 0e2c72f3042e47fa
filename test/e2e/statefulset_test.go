//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/cluster"
)

// journal counts in a file, from where the last process stopped. Two processes at once would find the directory that the other one made, or
// write a number twice.
const journal = `trap 'busybox rmdir /data/running; exit 0' TERM; busybox mkdir /data/running || echo "$HOSTNAME found another process" >>/data/overlaps
while true; do
n=$(($(cat /data/count 2>/dev/null) + 1)); echo $n >/data/count; echo "$n $HOSTNAME ${FENCING_TOKEN:-none}" >>/data/journal; sleep 0.1
done`

// TestStatefulSetWithAClaim moves a StatefulSet whose claim is attached to one node to a SingletonJob, by the manifest and the commands of
// docs/from-statefulset.md. The journal on the volume continues where the old process stopped, and no two processes have written it at once.
func TestStatefulSetWithAClaim(t *testing.T) {
	x := begin(t)
	x.needLab()
	d := x.driver()
	x.claim("data-billing-0", corev1.ReadWriteOnce, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "data"}})
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(d.volumes, "data", file))
		if err != nil && !os.IsNotExist(err) {
			x.Fatal(err)
		}
		return string(text)
	}
	lines := func() []string { return strings.Split(strings.TrimSuffix(read("journal"), "\n"), "\n") }
	page, err := os.ReadFile("../../docs/from-statefulset.md")
	x.must(err)
	_, manifest, _ := strings.Cut(string(page), "```yaml\n")
	manifest, _, _ = strings.Cut(manifest, "```")
	var moved v1alpha1.SingletonJob
	x.must(yaml.UnmarshalStrict([]byte(manifest), &moved))
	moved.Namespace = x.namespace
	pod := &moved.Spec.Template.Spec
	volumes := pod.Volumes
	pod.Containers[0].Image, pod.Containers[0].Command = "busybox:1.37", []string{"sh", "-c", journal}
	*pod = cluster.RestrictedPod(pod.Containers...)
	own := metav1.ObjectMeta{Namespace: x.namespace, Name: moved.Name, Labels: map[string]string{"app": moved.Name}}
	x.note("the StatefulSet")
	x.must(bed.Client.Create(x.ctx, &appsv1.StatefulSet{ObjectMeta: own, Spec: appsv1.StatefulSetSpec{
		ServiceName: moved.Name, Selector: &metav1.LabelSelector{MatchLabels: own.Labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: own.Labels}, Spec: *pod.DeepCopy()},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		}}},
	}}))
	x.await("a journal of the StatefulSet", func() (bool, any, error) { return len(lines()) > 10, lines(), nil })

	pod.Volumes = volumes
	x.must(bed.Client.Create(x.ctx, &moved))
	s := x.shell()
	typist := &commands.Typist{TB: t, Test: "test/e2e TestStatefulSetWithAClaim", Top: "../..", Run: s.run}
	typist.Page("docs/from-statefulset.md")
	typist.End()

	j := &job{trial: x, name: "billing", key: client.ObjectKey{Namespace: x.namespace, Name: "billing"}}
	x.deleteBeforeItsDriver(j)
	first := j.awaitActiveAfter(0).Status
	if got := d.attachedTo(x); !slices.Equal(got, []string{first.ActiveNode}) {
		x.Errorf("the volume is attached to %v, the active pod on %s", got, first.ActiveNode)
	}
	writer := func(pod string) func() (bool, any, error) {
		return func() (bool, any, error) {
			all := lines()
			return slices.Contains(strings.Fields(all[len(all)-1]), pod), all[len(all)-1], nil
		}
	}
	x.await("a journal of the SingletonJob", writer(first.ActivePod))
	x.note("its pod is deleted")
	x.kubectl("delete", "pod", first.ActivePod)
	x.await("a journal of the next pod", writer(j.awaitActiveAfter(first.FencingToken).Status.ActivePod))
	x.kubectl("delete", "statefulset", "billing")
	x.checkJournal(lines(), read("overlaps"))
}

// checkJournal: the numbers continue without a gap, and a process that has stopped does not write again.
func (x *trial) checkJournal(lines []string, overlaps string) {
	x.Helper()
	var writers []string
	for i, line := range lines {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != fmt.Sprint(i+1) {
			x.Fatalf("SAFETY: line %d of the journal is %q, after %q", i+1, line, lines[max(i-1, 0)])
		}
		if writer := words[1] + " " + words[2]; len(writers) == 0 || writers[len(writers)-1] != writer {
			writers = append(writers, writer)
		}
	}
	x.Logf("%d lines, by %q", len(lines), writers)
	if overlaps != "" {
		x.Errorf("SAFETY: %s", overlaps)
	}
	if len(writers) != 3 || writers[0] != "billing-0 none" {
		x.Errorf("the journal is by %q, want the StatefulSet's pod, and then two of the job, once each", writers)
	}
}
