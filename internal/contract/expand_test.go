package contract

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// kubelet expands an argument as the kubelet does (third_party/forked/golang/expansion).
func kubelet(arg string, value func(string) (string, bool)) string {
	var out strings.Builder
	for i := 0; i < len(arg); i++ {
		end := strings.IndexByte(arg[i:], ')')
		switch {
		case arg[i] != '$' || i+1 == len(arg):
			out.WriteByte(arg[i])
		case arg[i+1] == '$':
			out.WriteByte('$')
			i++
		case arg[i+1] == '(' && end > 0:
			name := arg[i+2 : i+end]
			if known, ok := value(name); ok {
				out.WriteString(known)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func known(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

// What reaches the process is what the kubelet would make of it, did it know the token.
func TestExpandIsTheKubelets(t *testing.T) {
	theirs := map[string]string{"THEIRS": "theirs"}
	ours := map[string]string{"TOKEN": "7"}
	all := map[string]string{"THEIRS": "theirs", "TOKEN": "7"}
	check := func(arg string) {
		t.Helper()
		quoted := Quote(arg, func(name string) bool { _, ok := ours[name]; return ok })
		got, want := Expand(kubelet(quoted, known(theirs)), known(ours)), kubelet(arg, known(all))
		if got != want {
			t.Fatalf("%q becomes %q, want %q (the container has %q)", arg, got, want, quoted)
		}
	}
	for _, arg := range []string{
		"", "$", "$(TOKEN)", "$$(TOKEN)", "$$$(TOKEN)", "$$$$(TOKEN)", "--token=$(TOKEN):$(THEIRS)", "$$(THEIRS)$(NOBODYS)$$(NOBODYS)",
		"$(TOKEN", "$(THEIRS$(TOKEN))", "$(A$$(TOKEN))", "$$TOKEN $TOKEN", "$()", "($(TOKEN))$",
	} {
		check(arg)
	}
	pieces := []string{"$", "$", "$$", "(", ")", "TOKEN", "THEIRS", "$(TOKEN)", "$(THEIRS)", "(TOKEN)", "x"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		var arg strings.Builder
		for range r.IntN(9) {
			arg.WriteString(pieces[r.IntN(len(pieces))])
		}
		check(arg.String())
	}
}

// By k8s.io/kubernetes/third_party/forked/golang/expansion, which kubelets use.
func TestExpandAll(t *testing.T) {
	value := func(name string) (string, bool) { return "<" + name + ">", name != "OTHER" }
	for arg, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"$(A)":         "<A>",
		"a$(A)b$(B)":   "a<A>b<B>",
		"$(OTHER)":     "$(OTHER)",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$<A>",
		"kill -0 $$$$": "kill -0 $$",
		"$HOME $":      "$HOME $",
		"$(open":       "$(open",
		"$(A $(B)":     "<A $(B>",
		"$()":          "<>",
	} {
		if got := ExpandAll(arg, value); got != want {
			t.Errorf("%q: got %q, want %q", arg, got, want)
		}
	}
}
