//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/singletonjob/operator/build/gotool"
)

const (
	// envtestIndex is the index that setup-envtest reads by default.
	envtestIndex = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
	// probeTimeout: a network that answers does so within this; a closed one must not hold up the build.
	probeTimeout = 3 * time.Second
	// downloadTimeout is about what the build would take.
	downloadTimeout = 4 * time.Minute
)

func downloaded(cache string) Binaries {
	minor := KubernetesVersion[:strings.LastIndex(KubernetesVersion, ".")]
	dir := filepath.Join(cache, "envtest", "k8s", minor+".*-"+runtime.GOOS+"-"+runtime.GOARCH)
	if found, _ := filepath.Glob(dir); len(found) > 0 {
		dir = found[len(found)-1]
	}
	return Binaries{Dir: dir, Origin: "downloaded by setup-envtest"}
}

// download has setup-envtest fetch the programs; it verifies their checksums.
func download(ctx context.Context, progress io.Writer, cache string) (Binaries, error) {
	if err := reachable(ctx, envtestIndex); err != nil {
		return Binaries{}, err
	}
	_, _ = fmt.Fprintf(progress, "downloading etcd, kube-apiserver and kubectl %s (about 80 MB, at most %v)\n", KubernetesVersion, downloadTimeout)
	dir, err := moduleDir(ctx, "setup-envtest")
	if err != nil {
		return Binaries{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	minor := KubernetesVersion[:strings.LastIndex(KubernetesVersion, ".")]
	out, err := gotool.Command(ctx, dir, "tool", "setup-envtest", "use", minor+".x", "--bin-dir", filepath.Join(cache, "envtest"), "-p", "path").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("setup-envtest: %w", withStderr(err))
	}
	b := Binaries{Dir: strings.TrimSpace(string(out)), Origin: "downloaded by setup-envtest"}
	if missing := b.missing(minimal); len(missing) > 0 {
		return Binaries{}, fmt.Errorf("setup-envtest's %s lacks %s", b.Dir, strings.Join(missing, ", "))
	}
	return b, nil
}

func reachable(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("the download site does not answer: %w", err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the download site answers %s", response.Status)
	}
	return nil
}
