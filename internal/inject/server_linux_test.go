package inject

import (
	"math/rand/v2"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/tier"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// admit asks the API server whether it accepts the Pod, and returns it as it would be stored.
func admit(t *testing.T, client kubernetes.Interface, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace = namespace
	return client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// namespace has the service accounts that the jobs need. It can enforce the Pod Security profile "restricted".
func namespace(t *testing.T, restricted bool, accounts ...string) (kubernetes.Interface, string) {
	t.Helper()
	plane := apiserver.ForTest(t)
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	name := plane.Namespace(t)
	for _, account := range accounts {
		object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
		if _, err := client.CoreV1().ServiceAccounts(name).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if restricted {
		plane.EnforcePodSecurity(t, name)
	}
	return client, name
}

// The samples run under the strictest Pod Security profile. The API server accepts every Pod of testdata.
func TestServerAcceptsThePods(t *testing.T) {
	for name, job := range jobs(t) {
		t.Run(name, func(t *testing.T) {
			restricted := name != "minimal" && name != "opinionated" // their templates set no security context, or hostNetwork
			client, ns := namespace(t, restricted, ServiceAccountName(job))
			mounting := settings
			mounting.AgentImageVolume = true
			if _, err := admit(t, client, ns, mustPod(t, job, 1, mounting)); err != nil {
				t.Errorf("with the agent's image as a volume: %v", err)
			}
			stored, err := admit(t, client, ns, mustPod(t, job, 1, settings))
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range stored.Spec.Volumes {
				if p := v.Projected; p != nil && len(p.Sources) == 0 {
					t.Errorf("volume %s is empty", v.Name)
				}
			}
		})
	}
}

// The candidate passes Pod Security if the template does, and has the template's quality of service.
func TestInjectionKeepsPodSecurityAndQualityOfService(t *testing.T) {
	client, ns := namespace(t, true, "job-singletonjob")
	seed := tier.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0))
	seen := map[corev1.PodQOSClass]int{}
	refused := 0
	for range 150 {
		job := randomJob(r)
		bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: job.Spec.Template.Spec}
		plain, plainErr := admit(t, client, ns, bare)
		candidate, candidateErr := admit(t, client, ns, mustPod(t, job, 0, settings))
		switch {
		case plainErr != nil && !apierrors.IsForbidden(plainErr):
			t.Fatalf("seed %d: a template that no pod can be made of tests nothing: %v", seed, plainErr)
		case (plainErr == nil) != (candidateErr == nil):
			t.Fatalf("seed %d: template: %v; candidate: %v", seed, plainErr, candidateErr)
		case plainErr != nil:
			refused++
		default:
			if plain.Status.QOSClass != candidate.Status.QOSClass {
				t.Fatalf("seed %d: %s became %s", seed, plain.Status.QOSClass, candidate.Status.QOSClass)
			}
			seen[plain.Status.QOSClass]++
		}
	}
	t.Logf("seed %d: %d refused, %v", seed, refused, seen)
	if len(seen) < 3 || refused == 0 {
		t.Errorf("seed %d: the templates were too much alike: %d refused, %v", seed, refused, seen)
	}
}

// The API server accepts the Pods of every job that validation accepts, also with names and numbers at their limits.
func TestLimits(t *testing.T) {
	job := jobs(t)["minimal"]
	job.Name = "x23456789-123456789-123456789-123456789-123456789-12"
	if len(job.Name) != v1alpha1.MaxNameLength {
		t.Fatal(len(job.Name))
	}
	client, ns := namespace(t, false, ServiceAccountName(job))
	if _, err := admit(t, client, ns, mustPod(t, job, 99, Settings{AgentImage: "x", Port: 65535})); err != nil {
		t.Error(err)
	}
}
