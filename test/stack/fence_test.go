//go:build linux

package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/postgres"
)

// strictSchema is what docs/fencing-sql.md tells an administrator to do for a strict mark, and the table of the program.
const strictSchema = `
CREATE ROLE program LOGIN;
CREATE ROLE advancer LOGIN;
GRANT EXECUTE ON FUNCTION fence.advance(text, bigint, boolean) TO advancer;
SELECT fence.strict('JOB');
CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint);
GRANT INSERT ON entries TO program; GRANT USAGE ON entries_n_seq TO program;`

// advance is the hook of docs/fencing-sql.md, but for the path of psql.
var advance = []string{
	"$(PSQL)", "$(ADVANCE_URL)", "-X", "-v", "ON_ERROR_STOP=1", "-c",
	"SELECT fence.advance('$(SINGLETONJOB_NAMESPACE)/$(SINGLETONJOB_NAME)', $(FENCING_TOKEN), true)",
}

// writes is a program without a library for the database. Each psql sends one transaction, and the first refusal ends it.
const writes = `while "$PSQL" "$DATABASE_URL" -X -q -v ON_ERROR_STOP=1 -c "SELECT fence.assert('$SINGLETONJOB_NAMESPACE/$SINGLETONJOB_NAME',
$FENCING_TOKEN); INSERT INTO entries (token) VALUES ($FENCING_TOKEN)" >/dev/null; do sleep 0.1; done; sleep 600`

// program is what the shell above consists of, whatever it does at the moment.
func program(_ int, all []localnode.Process) []localnode.Process {
	return slices.DeleteFunc(slices.Clone(all), func(p localnode.Process) bool {
		return len(p.Args) == 0 || !slices.ContainsFunc([]string{"sh", "psql", "sleep"}, func(name string) bool { return filepath.Base(p.Args[0]) == name })
	})
}

// TestPreActivateAdvancesTheFence: the hook of each tenure raises a strict mark, which the program cannot do. So a tenure's writes are stored
// only after its hook, and those of the tenure before are refused, which is frozen meanwhile and wakes up before its agent.
func TestPreActivateAdvancesTheFence(t *testing.T) {
	w := newWorld(t)
	db := postgres.StartTCP(t)
	if out, err := db.Psql(fencesql.Script + strings.ReplaceAll(strictSchema, "JOB", w.ns+"/"+jobName)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	job := w.job(short, func(job *v1alpha1.SingletonJob) {
		job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
		job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: advance}}
		c := &job.Spec.Template.Spec.Containers[0]
		c.Command = []string{"sh", "-c", writes}
		psql, env := db.Client()
		c.Env = []corev1.EnvVar{{Name: "PSQL", Value: psql}, {Name: "DATABASE_URL", Value: address(db, "program")}, {Name: "ADVANCE_URL", Value: address(db, "advancer")}}
		for _, kv := range env {
			name, value, _ := strings.Cut(kv, "=")
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
		}
	})
	w.must(w.p.Client.Create(w.t.Context(), job))
	first := w.writesEntries(db, 0)
	w.protected()
	node, err := w.p.Cluster.NodeOf(w.ns, first.Status.ActivePod)
	w.must(err)
	w.must(node.Freeze(w.ns, first.Status.ActivePod))
	second := w.writesEntries(db, first.Status.FencingToken)

	_, err = node.Signal(w.ns, first.Status.ActivePod, program, syscall.SIGCONT)
	w.must(err)
	want := fmt.Sprintf("fencing token %d of %s/%s is stale: the highest is %d", first.Status.FencingToken, w.ns, jobName, second.Status.FencingToken)
	w.await("the refusal", func() (bool, any, error) {
		text, err := os.ReadFile(node.Log(w.ns, first.Status.ActivePod, "writer"))
		return strings.Contains(string(text), want), string(text), err
	})
	db.Says("0", fmt.Sprintf("SELECT count(*) FROM entries WHERE token < %[1]d AND n > (SELECT min(n) FROM entries WHERE token = %[1]d)", second.Status.FencingToken))
	w.must(node.Thaw(w.ns, first.Status.ActivePod))
}

func address(db *postgres.Server, role string) string {
	return "postgres://" + role + "@127.0.0.1:" + db.Port + "/postgres"
}

// writesEntries waits until a tenure with a token above after has stored entries.
func (w *world) writesEntries(db *postgres.Server, after int64) *v1alpha1.SingletonJob {
	w.t.Helper()
	db.Until("t", fmt.Sprintf("SELECT count(*) > 2 FROM entries WHERE token > %d", after))
	job, err := w.p.AwaitJob(w.context(), w.ns, jobName, "active", func(job *v1alpha1.SingletonJob) bool { return job.Status.FencingToken > after })
	w.must(err)
	return job
}
