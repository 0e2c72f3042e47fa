// Command elector is the benchmark's workload as it is written today without SingletonJob. It uses client-go's leader
// election with the usual settings, 15 s, 10 s and 2 s, and release on cancel, and runs in a Deployment of two. It is
// set up like the controllers of Kubernetes itself.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/singletonjob/operator/test/workload/load"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		os.Exit(1)
	}
}

// clusterConfig is a pod's, which finds its credentials in $CREDENTIALS where no file can be at the path that is built in.
func clusterConfig() (*rest.Config, error) {
	dir := os.Getenv("CREDENTIALS")
	if dir == "" {
		return rest.InClusterConfig()
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
	}, nil
}

func run() error {
	config, err := clusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(load.Context(), leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: os.Getenv("NAMESPACE"), Name: "elector"},
			Client:    client.CoordinationV1(),
			// A new identity for each process, as controller-runtime and Kubernetes' own controllers have it.
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { load.Write(ctx, load.NoToken) },
			OnStoppedLeading: func() { os.Exit(0) },
		},
	})
	return nil
}
