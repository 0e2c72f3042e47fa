package contract

import "testing"

func TestStopSignalOfAnImage(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "SIGTERM": "SIGTERM", "sigquit": "SIGQUIT", "WINCH": "SIGWINCH", "3": "SIGQUIT", "37": "SIGRTMIN+3", "SIGRTMIN+3": "SIGRTMIN+3", "rtmin+3": "SIGRTMIN+3",
		"SIGKILL": "", "9": "", "0": "", "-3": "", "SIG": "", "SIGSIGQUIT": "", "SIGRTMIN+4": "", "99999999999999999999": "",
	} {
		if got := StopSignal(text); got != want {
			t.Errorf("%q means %q, want %q", text, got, want)
		}
	}
}
