package contract

import "strings"

// Promised are the names of the variables that processes find besides the one for its token: those of a run where there is one.
func Promised() []string {
	return []string{
		NameEnv, NamespaceEnv, PodEnv, TenureEnv, LeaseDurationEnv, SocketEnv, RunIDEnv, TickEnv, PreviousTickEnv, AttemptEnv,
	}
}

// Expand replaces $(NAME) in an argument where value knows NAME, and leaves all else as it is: the kubelet has expanded the
// container's variables before. $$ before what would be replaced is a $ and keeps the next one from meaning anything, as
// for the kubelet.
func Expand(arg string, value func(name string) (string, bool)) string {
	return eachReference(arg, func(dollars, name string) string {
		known, ok := value(name)
		if !ok {
			return dollars + "(" + name + ")"
		}
		half := dollars[:len(dollars)/2]
		if len(dollars)%2 == 0 {
			return half + "(" + name + ")"
		}
		return half + known
	})
}

// Refers reports whether an argument has a reference to such a name, escaped or not.
func Refers(arg string, to func(name string) bool) bool {
	found := false
	eachReference(arg, func(dollars, name string) string {
		found = found || to(name)
		return dollars
	})
	return found
}

// Quote has an argument reach Expand, by way of the kubelet, as it is here where it refers to a name for Expand: the
// kubelet makes one $ of two.
func Quote(arg string, ours func(name string) bool) string {
	return eachReference(arg, func(dollars, name string) string {
		if ours(name) {
			dollars += dollars
		}
		return dollars + "(" + name + ")"
	})
}

// ExpandAll is what a kubelet makes of an argument for which it knows all values: $(NAME) is replaced where value knows NAME, and $$ is
// a $ wherever it stands.
func ExpandAll(arg string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(arg, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		known, ok := value(name)
		switch {
		case strings.HasPrefix(rest, "$"):
			rest = rest[1:]
			out.WriteByte('$')
		case strings.HasPrefix(rest, "(") && closed && ok:
			rest = after
			out.WriteString(known)
		case strings.HasPrefix(rest, "(") && closed:
			rest = after
			out.WriteString("$(" + name + ")")
		default:
			out.WriteByte('$')
		}
		arg = rest
	}
}

// eachReference replaces each $(NAME), with all the $ that stand before it.
func eachReference(arg string, replace func(dollars, name string) string) string {
	var out strings.Builder
	for {
		start := strings.IndexByte(arg, '$')
		if start < 0 {
			out.WriteString(arg)
			return out.String()
		}
		out.WriteString(arg[:start])
		arg = arg[start:]
		rest := strings.TrimLeft(arg, "$")
		dollars := arg[:len(arg)-len(rest)]
		end := strings.IndexAny(rest, "$)") // a name has neither
		if !strings.HasPrefix(rest, "(") || end < 0 || rest[end] != ')' {
			out.WriteString(dollars)
			arg = rest
			continue
		}
		out.WriteString(replace(dollars, rest[1:end]))
		arg = rest[end+1:]
	}
}
