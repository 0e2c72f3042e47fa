package main

import "testing"

// An operator with a kubeconfig file may run in a Pod of another cluster.
func TestAPIServerOfThePods(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	lookup := func(name string) string { return env[name] }
	for name, test := range map[string]struct{ kubeconfig, host, port string }{
		"in the cluster": {host: "10.0.0.1", port: "443"},
		"by a file":      {kubeconfig: "/config"},
	} {
		t.Run(name, func(t *testing.T) {
			if s := (options{kubeconfig: test.kubeconfig}).settings(lookup); s.APIHost != test.host || s.APIPort != test.port {
				t.Errorf("the API server is at %q, %q; want %q, %q", s.APIHost, s.APIPort, test.host, test.port)
			}
		})
	}
}
