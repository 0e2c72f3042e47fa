//go:build linux

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

//go:embed system.yaml
var systemManifest string

// readyTimeout is how long the cluster may take to become ready when everything of it runs. It is generous: a busy machine
// is slow, not broken.
const readyTimeout = 15 * time.Minute

// AwaitAPI returns when API server i is ready, or at once when it can't become so.
func (l *Lab) AwaitAPI(ctx context.Context, i int) error {
	m, err := l.Machine(Control)
	if err != nil {
		return err
	}
	return l.awaitAPI(ctx, m, i)
}

// awaitAPI returns when API server i is ready, or at once when it can't become so.
func (l *Lab) awaitAPI(ctx context.Context, m Machine, i int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := l.adminClient()
	if err != nil {
		return err
	}
	return Poll(ctx, 50*time.Millisecond, APIServer(i), func() (bool, error) {
		if err := l.stillRuns(ctx, m, APIServer(i), Etcd(i)); err != nil {
			return false, err
		}
		return get(ctx, client, i, "/readyz", nil)
	})
}

// stillRuns returns an error that tells where to look if one of the services has ended.
func (l *Lab) stillRuns(ctx context.Context, m Machine, names ...string) error {
	services, err := m.Services().List(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		for _, name := range names {
			if s.Name == name && s.PID == 0 {
				log := name
				if m.Node > 0 {
					log = m.Name + "-" + name
				}
				return fmt.Errorf("%s ended (%s): see %s", name, s.Exit, l.Log(log))
			}
		}
	}
	return nil
}

// finish installs the DNS and waits until the cluster takes pods and resolves names.
func (l *Lab) finish(ctx context.Context, s *state) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := l.kubectl(ctx, systemManifest, "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	client, err := l.adminClient()
	if err != nil {
		return err
	}
	for what, ready := range map[string]func() (bool, error){
		"the nodes to be ready":       func() (bool, error) { return nodesReady(ctx, client, s.Nodes) },
		"the default service account": func() (bool, error) { return serviceAccountExists(ctx, client) },
		"the DNS to be ready":         func() (bool, error) { return dnsReady(ctx, client) },
	} {
		if err := Poll(ctx, 100*time.Millisecond, what, ready); err != nil {
			return fmt.Errorf("%w (logs are in %s)", err, l.path("log"))
		}
	}
	return nil
}

func nodesReady(ctx context.Context, client *http.Client, want int) (bool, error) {
	var nodes corev1.NodeList
	if found, err := get(ctx, client, 1, "/api/v1/nodes", &nodes); !found || err != nil {
		return false, err
	}
	ready := 0
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	return ready >= want, nil
}

func serviceAccountExists(ctx context.Context, client *http.Client) (bool, error) {
	return get(ctx, client, 1, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}

func dnsReady(ctx context.Context, client *http.Client) (bool, error) {
	var dns appsv1.Deployment
	found, err := get(ctx, client, 1, "/apis/apps/v1/namespaces/kube-system/deployments/coredns", &dns)
	return found && dns.Status.AvailableReplicas > 0, err
}

// ContainerID finds the id of a running container from NAMESPACE/POD or NAMESPACE/POD/CONTAINER. Without a container's
// name the pod must have only one.
func (l *Lab) ContainerID(ctx context.Context, ref string) (string, error) {
	namespace, rest, _ := strings.Cut(ref, "/")
	name, wanted, named := strings.Cut(rest, "/")
	client, err := l.adminClient()
	if err != nil {
		return "", err
	}
	var pod corev1.Pod
	if found, err := get(ctx, client, 1, "/api/v1/namespaces/"+namespace+"/pods/"+name, &pod); !found || err != nil {
		return "", errors.Join(fmt.Errorf("no pod %s in namespace %s, or the API server does not answer: name the container by its id", name, namespace), err)
	}
	var ids, names []string
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil && (!named || c.Name == wanted) {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			ids, names = append(ids, id), append(names, c.Name)
		}
	}
	if len(ids) != 1 {
		return "", fmt.Errorf("%s: %d running containers %v match, want one", ref, len(ids), names)
	}
	return ids[0], nil
}

func (l *Lab) adminClient() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(l.PKI("admin.crt"), l.PKI("admin.key"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(l.PKI("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}, nil
}

// get reads an object from API server i, into nothing if that is nil. While the server can't answer, the object is not
// found.
func get(ctx context.Context, client *http.Client, i int, path string, into any) (found bool, err error) {
	url := fmt.Sprintf("https://%s:%d%s", APIAddress(i), APIPort, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return false, nil
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || into == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode == http.StatusOK, nil
	}
	return true, json.NewDecoder(answer.Body).Decode(into)
}

// kubectl runs it as administrator.
func (l *Lab) kubectl(ctx context.Context, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, l.bin.Path("kubectl"), append([]string{"--kubeconfig=" + l.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
