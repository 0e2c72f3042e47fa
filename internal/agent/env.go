//go:build linux

package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe/check"
)

// FromEnv returns the options from the environment of the container. The caller sets the rest: Argv, Socket, Clock, Start and Log. Errors
// name the variable and the remedy. Running the agent again does not help.
func FromEnv(environ []string, pid int) (Options, error) {
	env := Lookup(environ)
	config, err := contract.DecodeConfig(env(contract.ConfigEnv))
	if err != nil {
		return Options{}, err
	}
	for _, name := range []string{contract.PodEnv, contract.PodUIDEnv, contract.NamespaceEnv} {
		if env(name) == "" {
			return Options{}, fmt.Errorf("%s is not set: run the agent in a container that the SingletonJob operator created", name)
		}
		if strings.Contains(env(name), "/") {
			return Options{}, fmt.Errorf("%s %q contains a slash, which separates the parts of a holder's identity", name, env(name))
		}
	}
	if config.Pod != "" && config.Pod != env(contract.PodEnv) {
		return Options{}, fmt.Errorf("this Pod, %q, is a copy of %q, and only Pods that the operator created may act: delete it, or give the container "+
			"of the copy another command: kubectl debug --copy-to=NAME --container=CONTAINER -- sh", env(contract.PodEnv), config.Pod)
	}
	server, err := kubelease.InCluster(env)
	if err != nil {
		return Options{}, err
	}
	api, err := kubelease.New(kubelease.Config{
		Server:      server,
		Namespace:   env(contract.NamespaceEnv),
		Name:        config.Name,
		Credentials: cmp.Or(env(contract.CredentialsEnv), contract.CredentialsDir),
		RetryPeriod: time.Duration(config.RetryPeriod),
	})
	if err != nil {
		return Options{}, err
	}
	pod, uid := env(contract.PodEnv), env(contract.PodUIDEnv)
	asks := check.Checker{PodIP: env(contract.PodIPEnv)}
	return Options{
		Config:         config,
		Identity:       lease.Identity{Pod: pod, PodUID: uid, Nonce: rand.Text()[:nonceLength]},
		Node:           env(contract.NodeEnv),
		Namespace:      env(contract.NamespaceEnv),
		EndProvesDeath: pid == 1 || env(contract.RuntimeReapsEnv) == "true",
		Environ:        environ,
		API:            api,
		Deletion:       func(ctx context.Context) (kubelease.Deletion, error) { return api.Deletion(ctx, pod, uid) },
		Check:          asks.Run,
		Call:           asks.Call,
	}, nil
}

// nonceLength is the length of the nonce that distinguishes the agent processes of one Pod, in characters of 5 bits.
const nonceLength = 12

// Lookup returns a function that looks up a variable in an environment. If a name occurs more than once, the last entry counts.
func Lookup(environ []string) func(string) string {
	values := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}
