package contract

import (
	"slices"
	"strings"
)

// Promised are the names of the variables that processes find besides the one for its token: those of a run where there is one.
func Promised() []string {
	return []string{
		NameEnv, NamespaceEnv, PodEnv, TenureEnv, LeaseDurationEnv, SocketEnv, RunIDEnv, TickEnv, PreviousTickEnv, AttemptEnv,
	}
}

// AgentAlone reports whether the agent alone knows the value of a variable, given the name of the one for the token. A kubelet knows
// PodEnv and NamespaceEnv, too.
func AgentAlone(tokenEnv, name string) bool {
	return name == tokenEnv || name != PodEnv && name != NamespaceEnv && slices.Contains(Promised(), name)
}

// MarkReferences makes a mark of each $(NAME) in text that a kubelet would look up and whose NAME is the agent's, and changes nothing else. A
// mark has no $, so a kubelet leaves it as it is, beside whatever it puts in place of other references; Expand replaces it. The
// secret is a word that neither the text nor the values of other variables contain.
func MarkReferences(text, secret string, agents func(name string) bool) string {
	return expand(text, "$$", func(name string) (string, bool) {
		return markOf(secret) + name + markEnd, agents(name)
	})
}

// Expand replaces each mark of MarkReferences by the value of its variable, and by $(NAME) where value does not know NAME. Text
// without marks stays as it is, and so does all text where there is no secret.
func Expand(text, secret string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for secret != "" {
		start := markOf(secret)
		before, rest, marked := strings.Cut(text, start)
		name, after, ends := strings.Cut(rest, markEnd)
		if !marked || !ends {
			break
		}
		if last := strings.LastIndex(name, start); last >= 0 { // no name has a mark in it: what is before is text
			before, name = before+start+name[:last], name[last+len(start):]
		}
		known, ok := value(name)
		if !ok {
			known = "$(" + name + ")"
		}
		out.WriteString(before)
		out.WriteString(known)
		text = after
	}
	return out.String() + text
}

func markOf(secret string) string { return "{singletonjob-" + secret + ":" }

const markEnd = "}"

// ExpandAll is what a kubelet makes of an argument for which it knows all values: $(NAME) is replaced where value knows NAME, and $$ is
// a $ wherever it stands.
func ExpandAll(arg string, value func(name string) (string, bool)) string {
	return expand(arg, "$", value)
}

// expand reads text as a kubelet does, and replaces each $$ and each $(NAME) for which value has something.
func expand(text, escaped string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		reference := strings.HasPrefix(rest, "(") && closed
		known, ok := "", false
		if reference {
			known, ok = value(name)
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			rest = rest[1:]
			out.WriteString(escaped)
		case reference && ok:
			rest = after
			out.WriteString(known)
		case reference:
			rest = after
			out.WriteString("$(" + name + ")")
		default:
			out.WriteByte('$')
		}
		text = rest
	}
}
