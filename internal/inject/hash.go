package inject

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// injectionVersion is raised if running Pods need a change in what this package adds, for example in a protocol that old agents do
// not speak. That rolls out every job, a few at a time. The hashes of earlier versions show which jobs still need the rollout.
const injectionVersion = 1

// hashed contains everything of a job on which a running Pod depends. A change to it is a rollout.
//
// It does not contain candidates, suspend, schedule, historyLimit and tokenBase, which take effect without a new Pod. It does not
// contain the operator's part either, the agent's image and the shape of the injection: an upgrade of the operator must not restart
// every workload. An agent always has the version of its configuration, because both come with the Pod. New agents arrive with the
// job's next rollout, or through injectionVersion.
type hashed struct {
	InjectionVersion int `json:"Revision"` // the original name; changing it would roll out every job
	// UID distinguishes the job's Pods from those of an earlier job with the same name.
	UID      string
	Template *corev1.PodTemplateSpec
	Gated    int
	Lease    v1alpha1.LeaseSpec
	EnvVar   string
	// PreActivate was added later: a job without it must keep its hash.
	PreActivate *v1alpha1.PreActivate `json:",omitempty"`
	// RestartedAt is not in the spec. Changing it asks for new Pods of the same template.
	RestartedAt string `json:",omitempty"`
	// Run is nil for a continuous job, which must keep its hash. It does not contain the times of runs, which are in the Lease.
	Run *contract.RunConfig `json:",omitempty"`
}

// Hash identifies the Pods that job asks for. It has seven characters, and two templates of a job are unlikely to have the same.
func Hash(job *v1alpha1.SingletonJob) string { return hashAt(job, injectionVersion) }

// Hash is the hash of the Pods that an operator with these settings creates.
func (s Settings) Hash(job *v1alpha1.SingletonJob) string { return hashAt(job, s.injectionVersion()) }

// EarlierHashes are the hashes of the same job at each earlier injection version. A Pod with one of them is outdated only because
// of the operator. After a downgrade, nothing is known of later versions.
func (s Settings) EarlierHashes(job *v1alpha1.SingletonJob) []string {
	var earlier []string
	for version := 1; version < s.injectionVersion(); version++ {
		earlier = append(earlier, hashAt(job, version))
	}
	return earlier
}

func (s Settings) injectionVersion() int { return cmp.Or(s.InjectionVersion, injectionVersion) }

// EntrypointHash identifies the template for which an image's entrypoint was looked up. It does not depend on what is injected.
func EntrypointHash(job *v1alpha1.SingletonJob) string { return hashAt(job, 1) }

func hashAt(job *v1alpha1.SingletonJob, version int) string {
	job = job.DeepCopy()
	v1alpha1.Default(job)
	canonical, err := json.Marshal(hashed{
		InjectionVersion: version, UID: string(job.UID), Template: &job.Spec.Template, Gated: job.GatedContainer(),
		Lease: job.Spec.Lease, EnvVar: job.Spec.Fencing.EnvVar, PreActivate: job.Spec.PreActivate,
		RestartedAt: job.Annotations[contract.RestartedAtAnnotation], Run: runConfig(job),
	})
	if err != nil {
		panic(err) // every field was JSON when the API server sent it
	}
	sum := sha256.Sum256(withoutEmpty(canonical))
	return letters(binary.BigEndian.Uint64(sum[:8]))
}

const (
	hashLength = 7
	// alphabet has no vowels and no digits that look like vowels, so that no hash is a word.
	alphabet = "bcdfghjklmnpqrstvwxz2456789"
)

// letters writes a number in the alphabet, with the last digit first.
func letters(n uint64) string {
	out := make([]byte, hashLength)
	for i := range out {
		out[i] = alphabet[n%uint64(len(alphabet))]
		n /= uint64(len(alphabet))
	}
	return string(out)
}

// spread is a number derived from a hash. It differs between hashes.
func spread(hash string) int {
	n := 0
	for _, c := range []byte(hash) {
		n = n*len(alphabet) + slices.Index([]byte(alphabet), c)
	}
	return n
}

// withoutEmpty removes what a later version of the Kubernetes libraries could encode differently with the same meaning: nulls, and
// empty structs that are not pointers. Such a version must not roll out every job.
func withoutEmpty(raw []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // an int64 stays exact
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic(err) // it was marshalled just now
	}
	out, err := json.Marshal(prune(value))
	if err != nil {
		panic(err) // it was unmarshalled just now
	}
	return out
}

func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			child = prune(child)
			v[key] = child
			inner, isMap := child.(map[string]any)
			if child == nil || isMap && len(inner) == 0 && (key == "resources" || key == "metadata") {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}
