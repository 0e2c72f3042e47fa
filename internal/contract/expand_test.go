package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// kubelet expands text as a kubelet does: k8s.io/kubernetes/third_party/forked/golang/expansion.
func kubelet(text string, value func(string) (string, bool)) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch end := strings.IndexByte(text[i+1:], ')'); {
		case text[i+1] == '(' && end > 0:
			name := text[i+2 : i+1+end]
			if known, ok := value(name); ok {
				out.WriteString(known)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += 1 + end
		case text[i+1] == '$':
			out.WriteByte('$')
			i++
		default:
			out.WriteString(text[i : i+2])
			i++
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

// FuzzExpandMatchesTheKubelet: what reaches the process is what a kubelet would make of it, did it know the token, whatever the other
// variables contain.
func FuzzExpandMatchesTheKubelet(f *testing.F) {
	for _, text := range []string{
		"", "$", "$(TOKEN)", "$$(TOKEN)", "$$$(TOKEN)", "$$$$(TOKEN)", "--token=$(TOKEN):$(THEIRS)", "$$(THEIRS)$(NOBODYS)$$(NOBODYS)",
		"$(TOKEN", "$(THEIRS$(TOKEN))", "$(A$$(TOKEN))", "$$TOKEN $TOKEN", "$()", "($(TOKEN))$", "$(THEIRS)$(TOKEN)", "$(THEIRS)(TOKEN)",
		"$$(THEIRS)$(TOKEN)$(THEIRS)", "$(TICK)$(TOKEN)", "{singletonjob-:TOKEN}", "$x$(TOKEN)", "$é$(TOKEN)", "{$(TOKEN)}",
	} {
		for _, theirs := range []string{"theirs", "pa$", "pa$$", "$(TOKEN)", "$$(TOKEN)", "$(", "(TOKEN)", "{singletonjob-:TOKEN}", "}", ""} {
			f.Add(text, theirs)
		}
	}
	f.Fuzz(func(t *testing.T, text, theirs string) {
		const secret = "0123456789abcdef"
		if strings.Contains(text+theirs, secret) {
			t.Skip()
		}
		ours := map[string]string{"TOKEN": "7"}
		agents := func(name string) bool { return name == "TOKEN" || name == "TICK" } // there is no tick
		given := MarkReferences(text, secret, agents)
		got := Expand(kubelet(given, known(map[string]string{"THEIRS": theirs})), secret, known(ours))
		if want := kubelet(text, known(map[string]string{"THEIRS": theirs, "TOKEN": "7"})); got != want {
			t.Errorf("%q beside %q becomes %q, want %q (the container has %q)", text, theirs, got, want, given)
		}
		if given != text && !strings.Contains(given, secret) {
			t.Errorf("%q becomes %q, without a reference to the agent's", text, given)
		}
		all := func(name string) (string, bool) { return "<" + name + theirs + ">", name != "OTHER" }
		if got, want := ExpandAll(text, all), kubelet(text, all); got != want {
			t.Errorf("%q becomes %q, a kubelet's is %q", text, got, want)
		}
	})
}

// A value is put in once, and nothing is read in it again. Without a secret there are no marks.
func TestExpandIsNotRecursive(t *testing.T) {
	mark := MarkReferences("$(A)", "s", func(string) bool { return true })
	value := func(name string) (string, bool) { return mark + "$(A)", name == "A" }
	for _, c := range []struct{ text, secret, want string }{
		{"1" + mark + "2", "s", "1" + mark + "$(A)2"},
		{mark, "", mark},
		{mark, "other", mark},
		{mark[:len(mark)-1], "s", mark[:len(mark)-1]},
		// A Secret may contain the beginning of a mark, written by one who has read the pod. The mark that follows is still expanded.
		{"{singletonjob-s:" + mark, "s", "{singletonjob-s:" + mark + "$(A)"},
		{"{singletonjob-s:{singletonjob-s:B" + mark + "}", "s", "{singletonjob-s:{singletonjob-s:B" + mark + "$(A)}"},
	} {
		if got := Expand(c.text, c.secret, value); got != c.want {
			t.Errorf("%q with the secret %q: got %q, want %q", c.text, c.secret, got, c.want)
		}
	}
}

// Only variables that a kubelet would look up are requested, because the caller records the request.
func TestOnlyReferencesAreLookedUp(t *testing.T) {
	var asked []string
	text := "(echo $FENCING_TOKEN) $$(A) $B) $(C) $(D"
	MarkReferences(text, "s", func(name string) bool { asked = append(asked, name); return false })
	if want := []string{"C"}; !slices.Equal(asked, want) {
		t.Errorf("of %q it asks for %q, want %q", text, asked, want)
	}
}

func TestAgentAlone(t *testing.T) {
	got := map[string]bool{}
	for _, name := range append(Promised(), "TOKEN", "HOME", ConfigEnv) {
		got[name] = AgentAlone("TOKEN", name)
	}
	want := map[string]bool{
		NameEnv: true, NamespaceEnv: false, PodEnv: false, TenureEnv: true, LeaseDurationEnv: true, SocketEnv: true, RunIDEnv: true,
		TickEnv: true, PreviousTickEnv: true, AttemptEnv: true, "TOKEN": true, "HOME": false, ConfigEnv: false,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
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
