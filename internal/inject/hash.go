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

// injectionVersion is raised when what this package adds to pods changes in a way that running pods must not go on without, such
// as a protocol that old agents do not speak. It rolls out every job, a few at a time, since the hashes that jobs had at the versions
// before tell whose rollout it is.
const injectionVersion = 1

// hashed is everything of a job that a running pod depends on: a change of it is a rollout.
//
// Not in it are candidates, suspend, schedule, historyLimit and tokenBase, which act without a new pod, and what is the operator's:
// the agent's image and the shape of what is injected. An operator's upgrade must not restart every workload, and an agent
// is of the same version as the configuration it was started with, because both come with the pod. New agents arrive with
// the job's next rollout, or by injectionVersion.
type hashed struct {
	InjectionVersion int `json:"Revision"` // its first name: another one would be a rollout of every job
	// UID keeps the pods of a job from being taken for those of an earlier one of its name.
	UID      string
	Template *corev1.PodTemplateSpec
	Gated    int
	Lease    v1alpha1.LeaseSpec
	EnvVar   string
	// PreActivate came later: a job without one is to keep its hash.
	PreActivate *v1alpha1.PreActivate `json:",omitempty"`
	// RestartedAt is not of the spec: who changes it asks for new pods of the same template.
	RestartedAt string `json:",omitempty"`
	// Run is nil for a job that runs for ever, which is to keep its hash. When runs are due is not in it: that stands in the Lease.
	Run *contract.RunConfig `json:",omitempty"`
}

// Hash identifies the pods that job asks for: seven characters, of which no two templates of a job are likely to share.
func Hash(job *v1alpha1.SingletonJob) string { return hashAt(job, injectionVersion) }

// Hash is that of the pods that an operator with these settings makes.
func (s Settings) Hash(job *v1alpha1.SingletonJob) string { return hashAt(job, s.injectionVersion()) }

// EarlierHashes are those that the same job had at each injection version before. A pod of one of them is outdated by the operator
// alone. Of later versions, which an operator that was taken back has not, nothing is known.
func (s Settings) EarlierHashes(job *v1alpha1.SingletonJob) []string {
	var earlier []string
	for version := 1; version < s.injectionVersion(); version++ {
		earlier = append(earlier, hashAt(job, version))
	}
	return earlier
}

func (s Settings) injectionVersion() int { return cmp.Or(s.InjectionVersion, injectionVersion) }

// EntrypointHash says of which template it is known what the image runs. What is injected makes no difference to that.
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
	// alphabet has no vowels and no digit like one, so that no hash is a word.
	alphabet = "bcdfghjklmnpqrstvwxz2456789"
)

// letters writes a number in the alphabet, its last digit first.
func letters(n uint64) string {
	out := make([]byte, hashLength)
	for i := range out {
		out[i] = alphabet[n%uint64(len(alphabet))]
		n /= uint64(len(alphabet))
	}
	return string(out)
}

// spread is a number that differs between hashes.
func spread(hash string) int {
	n := 0
	for _, c := range []byte(hash) {
		n = n*len(alphabet) + slices.Index([]byte(alphabet), c)
	}
	return n
}

// withoutEmpty drops what a later version of the Kubernetes libraries may write differently though it means the same:
// nulls, and the empty structs that are no pointers. Such a version must not roll out every job.
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
