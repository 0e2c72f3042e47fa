//go:build linux

package localnode

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/test/subprocess"
)

// target is a running container as a probe sees it.
type target struct {
	ip        string
	container *corev1.Container
	run       execution
	mounts    mounts
}

// watchProbe runs a probe until ctx ends and calls changed with each result that has held for as often as its threshold
// asks. The first result is reported even if it is what was assumed.
func watchProbe(ctx context.Context, p *corev1.Probe, t target, changed func(healthy bool, why string)) {
	if !sleep(ctx, seconds(p.InitialDelaySeconds, 0)) {
		return
	}
	var last, reported *bool
	for count := int32(0); ; {
		err := probe(ctx, p, t)
		if ctx.Err() != nil {
			return
		}
		healthy := err == nil
		if last == nil || *last != healthy {
			last, count = &healthy, 0
		}
		count++
		needed := max(1, p.FailureThreshold)
		if healthy {
			needed = max(1, p.SuccessThreshold)
		}
		if count >= needed && (reported == nil || *reported != healthy) {
			reported = &healthy
			why := ""
			if err != nil {
				why = err.Error()
			}
			changed(healthy, why)
		}
		if !sleep(ctx, seconds(p.PeriodSeconds, 10)) {
			return
		}
	}
}

func seconds(n, otherwise int32) time.Duration {
	if n == 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func probe(ctx context.Context, p *corev1.Probe, t target) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(p.TimeoutSeconds, 1))
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return probeHTTP(ctx, p.HTTPGet, t)
	case p.TCPSocket != nil:
		return probeTCP(ctx, p.TCPSocket, t)
	case p.Exec != nil:
		return probeExec(ctx, p.Exec, t)
	default:
		return fmt.Errorf("the local node has httpGet, tcpSocket and exec probes only")
	}
}

func probeHTTP(ctx context.Context, get *corev1.HTTPGetAction, t target) error {
	address, err := t.address(get.Host, get.Port)
	if err != nil {
		return err
	}
	scheme := "http"
	if get.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/"+strings.TrimPrefix(get.Path, "/"), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "localnode-probe")
	for _, h := range get.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	// As the kubelet: no certificate is checked and no connection kept.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	return nil
}

func probeTCP(ctx context.Context, tcp *corev1.TCPSocketAction, t target) error {
	address, err := t.address(tcp.Host, tcp.Port)
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// address resolves a probe's host and port; a port may be named.
func (t target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = t.ip
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range t.container.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number <= 0 {
		return "", fmt.Errorf("container %q has no port %s", t.container.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func probeExec(ctx context.Context, action *corev1.ExecAction, t target) error {
	var argv []string
	for _, arg := range action.Command {
		argv = append(argv, t.mounts.rewrite(arg))
	}
	if len(argv) == 0 {
		return fmt.Errorf("an exec probe without a command")
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = t.run.Env, t.run.Dir
	running, err := subprocess.Start(cmd)
	if err != nil {
		return err
	}
	select {
	case <-running.Done():
		if err := running.Err(); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		return nil
	case <-ctx.Done():
		running.Stop(0)
		return fmt.Errorf("%s: no result in time", argv[0])
	}
}
