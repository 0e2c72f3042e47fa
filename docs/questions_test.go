package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// questions are those of users and operators, each with the section that answers it, and words of that answer.
var questions = []struct{ question, section, answer string }{
	{"Do I need it at all?", "docs/guide.md#alternatives", "A singleton is a bottleneck by design"},
	{"My program has leader election already: is that not enough?", "docs/from-election.md#client-gos-leader-election", "does not guarantee that only one client"},
	{"Two Pods of my job run. Do both act?", "docs/troubleshooting.md#two-pods-run", "the process runs only in the active one"},
	{"Two processes write at once: which one wins?", "docs/fencing.md#which-fence-for-my-sink", "a past tenure is refused"},
	{"How long is nobody active?", "docs/timing.md#which-settings", "With a short lease a lost node is replaced sooner"},
	{"Does it work with PostgreSQL?", "docs/fencing-sql.md", "PostgreSQL"},
	{"What does it cost?", "docs/sizing.md", "costs one write of its Lease per `retryPeriod`"},
	{"Can I use my image and my Helm chart unchanged?", "docs/workloads.md", "helm upgrade"},
	{"Does it run a job that ends, once or on a schedule?", "docs/runs.md#on-a-schedule", "schedule"},

	{"Why does nothing act?", "docs/troubleshooting.md#nothing-acts", "`HolderUnreachable` | wait"},
	{"An alert fired: what do I do?", "docs/monitoring.md#alerts", "| alert | when | what to do |"},
	{"How do I see the last failovers?", "docs/kubectl.md#history-token", "kubectl singleton history"},
	{"How do I drain a node?", "docs/volumes.md#drains", "kubectl drain"},
	{"A node is lost for good: what do I do?", "docs/volumes.md#a-cold-standby", "trust this taint"},
	{"A node's clock is wrong: does it matter?", "docs/timing.md#clocks", "No component compares the clocks of two machines"},
	{"What if the operator is down?", "docs/guarantees.md", "candidates continue to elect a holder"},
	{"What if the API server is down?", "docs/api-trouble.md", "A holder needs one confirmed renewal per renewDeadline"},
	{"What if etcd loses its quorum?", "docs/restore.md#etcd-has-lost-its-quorum", "No agent can renew"},
	{"How do I restore from a backup?", "docs/restore.md#etcd-is-restored-from-a-snapshot", "Raise `tokenBase` to the highest token"},
	{"How do I move a job to another cluster?", "docs/restore.md#move-a-job-to-another-cluster", "In the old cluster, stop the job"},
	{"How do I update or roll back?", "docs/rollout.md", "The standbys are replaced first"},
	{"In which order do I upgrade?", "docs/upgrade.md#upgrade-the-operator", "Running jobs do not notice it"},
	{"Which clients may change the Lease?", "docs/guard.md#the-lease-of-a-job", "make itself the holder, renew, and release what it holds"},
	{"Which rights does the operator have?", "SECURITY.md#rights", "| `leases` |"},
	{"How many jobs can a cluster hold?", "docs/limits.md#what-a-cluster-can-hold", "jobs whose renewals take half of etcd's default quota"},
	{"Which connections does it need?", "docs/network.md", "The operator and the Pods of SingletonJobs need it"},
	{"How do I uninstall it?", "docs/uninstall.md", "helm uninstall"},
}

// question is one of the index.
var question = regexp.MustCompile(`(?m)^\*\*[^*]*\?\*\* |^\*\*[^*]*\?\*\*$`)

// heading is one of a document, with its level.
var heading = regexp.MustCompile(`(?m)^(#+) (.*)$`)

// read returns a document by its path from the top, without its blocks of code.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return fence.ReplaceAllString(string(text), "\n")
}

// slug is the name of a heading in links: its letters, digits, hyphens and underscores, in lower case.
func slug(text string) string {
	text = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

// sectionOf returns the text below a heading, with its subsections; the whole document without an anchor. ok is false if there is no
// such heading.
func sectionOf(document, anchor string) (text string, ok bool) {
	if anchor == "" {
		return document, true
	}
	level := 0
	begin, all := 0, heading.FindAllStringSubmatchIndex(document, -1)
	for _, at := range all {
		depth := at[3] - at[2]
		switch {
		case level == 0 && slug(document[at[4]:at[5]]) == anchor:
			level, begin = depth, at[1]
		case level > 0 && depth <= level:
			return document[begin:at[0]], true
		}
	}
	return document[begin:], level > 0
}

// linksOf returns the documents of this repository to which a document links, by path from the top.
func linksOf(t *testing.T, path string) []string {
	t.Helper()
	var all []string
	for _, match := range link.FindAllStringSubmatch(read(t, path), -1) {
		all = append(all, filepath.Join(filepath.Dir(path), match[1])+match[2])
	}
	return all
}

// TestQuestionsAreAnswered: each question is in the index, and a link leads from there to the section that answers it. The README links to the
// index, so the answer is two clicks away. Every question of the index is tested.
func TestQuestionsAreAnswered(t *testing.T) {
	const index = "docs/README.md"
	first := strings.Join(linksOf(t, "README.md"), "\n")
	if !strings.Contains(first, index+"#questions") {
		t.Fatal("the README does not link to the questions")
	}
	answers, ok := sectionOf(read(t, index), "questions")
	if !ok {
		t.Fatal("the index has no questions")
	}
	if asked := len(question.FindAllString(answers, -1)); asked != len(questions) || asked < 20 {
		t.Errorf("the index has %d questions, and %d are tested", asked, len(questions))
	}
	for _, q := range questions {
		_, answer, found := strings.Cut(answers, "**"+q.question+"**")
		answer, _, _ = strings.Cut(answer, "\n\n")
		path, anchor, _ := strings.Cut(q.section, "#")
		target, err := filepath.Rel("docs", path)
		if err != nil {
			t.Fatal(err)
		}
		if !found || !strings.Contains(answer, "]("+target) {
			t.Errorf("%q is not in the index with a link to %s", q.question, path)
		}
		section, exists := sectionOf(read(t, path), anchor)
		if plain := strings.Join(strings.Fields(section), " "); !exists || !strings.Contains(plain, q.answer) {
			t.Errorf("%q: %s does not exist or lacks %q", q.question, q.section, q.answer)
		}
	}
}

func TestSections(t *testing.T) {
	const document = "# A\none\n## B, `c` [d](e.md)\ntwo\n### F\nthree\n## G\nfour\n"
	for anchor, want := range map[string]string{"": document, "b-c-d": "\ntwo\n### F\nthree\n", "f": "\nthree\n", "g": "\nfour\n"} {
		if got, ok := sectionOf(document, anchor); !ok || got != want {
			t.Errorf("%q: %q, %v", anchor, got, ok)
		}
	}
	if _, ok := sectionOf(document, "e"); ok {
		t.Error("a heading that does not exist is found")
	}
}
