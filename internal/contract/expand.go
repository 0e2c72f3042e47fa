package contract

import (
	"slices"
	"strings"
)

// Promised returns the names of the variables that the agent sets for a process besides the one for its token. Those of a run are set only
// if there is a run.
func Promised() []string {
	return []string{
		NameEnv, NamespaceEnv, PodEnv, TenureEnv, LeaseDurationEnv, SocketEnv, RunIDEnv, TickEnv, PreviousTickEnv, AttemptEnv,
	}
}

// AgentAlone reports whether only the agent knows the value of a variable. tokenEnv is the name of the token's variable. A kubelet knows
// PodEnv and NamespaceEnv, too.
func AgentAlone(tokenEnv, name string) bool {
	return name == tokenEnv || name != PodEnv && name != NamespaceEnv && slices.Contains(Promised(), name)
}

// MarkReferences replaces each $(NAME) in text that a kubelet would expand, and whose NAME is one of the agent's, by a mark. It changes
// nothing else. A mark contains no $, so a kubelet leaves it unchanged while it expands other references. Expand replaces the marks. The
// secret must be a word that neither the text nor the values of other variables contain.
func MarkReferences(text, secret string, agents func(name string) bool) string {
	return expand(text, "$$", func(name string) (string, bool) {
		return markOf(secret) + name + markEnd, agents(name)
	})
}

// Expand replaces each mark of MarkReferences by the value of its variable, or by $(NAME) if value does not know NAME. Text without marks
// stays unchanged. All text stays unchanged if there is no secret.
func Expand(text, secret string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for secret != "" {
		start := markOf(secret)
		before, rest, marked := strings.Cut(text, start)
		name, after, ends := strings.Cut(rest, markEnd)
		if !marked || !ends {
			break
		}
		if last := strings.LastIndex(name, start); last >= 0 { // a name contains no mark, so the part before the last mark is text
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

// ExpandAll expands an argument like a kubelet that knows all values: it replaces each $(NAME) whose NAME value knows, and each $$ by $.
func ExpandAll(arg string, value func(name string) (string, bool)) string {
	return expand(arg, "$", value)
}

// expand parses text like a kubelet. It replaces each $$ by escaped, and each $(NAME) for which value returns a text.
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
