//go:build linux

package localnode

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// Image stands for a container image: a directory that holds its files.
type Image struct {
	// Root is the directory. An absolute path that exists below it, and a bare name that it holds, mean that file as a
	// container's program; everything else is looked for on the machine itself.
	Root string
	// Entrypoint and Cmd are what the container runs if it names no command and no arguments.
	Entrypoint, Cmd []string
}

// image finds what stands for an image's reference, whatever its tag or digest.
func (n *Node) image(reference string) Image {
	name, _, _ := strings.Cut(reference, "@")
	if image, ok := n.options.Images[name]; ok {
		return image
	}
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name = name[:colon]
	}
	return n.options.Images[name]
}

// execution resolves what a container runs: command, arguments and environment with every reference replaced.
func (w *worker) execution(ctx context.Context, c *corev1.Container) (execution, mounts, error) {
	pod, image := w.current(), w.node.image(c.Image)
	m, err := w.volumes.mountsOf(c)
	if err != nil {
		return execution{}, nil, err
	}
	env := w.baseEnvironment(image)
	if err := env.addFrom(ctx, w.node.client, pod, c); err != nil {
		return execution{}, nil, err
	}
	w.tellAgent(env, m)
	var argv []string
	command, args := c.Command, c.Args
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	for _, arg := range append(append(argv, command...), args...) {
		argv = append(argv, m.rewrite(env.expand(arg)))
	}
	for name, value := range env {
		env[name] = m.rewrite(value)
	}
	if len(argv) == 0 {
		return execution{}, nil, fmt.Errorf("image %q names no command, nor does the container", c.Image)
	}
	dir := w.workingDir(c, image, m)
	path, err := program(argv[0], image, env["PATH"], dir)
	if err != nil {
		return execution{}, nil, err
	}
	return execution{Path: path, Args: argv, Env: env.list(), Dir: dir}, m, nil
}

// baseEnvironment is what every container gets before its own variables.
func (w *worker) baseEnvironment(image Image) variables {
	host, port, _ := net.SplitHostPort(w.node.proxy.Addr())
	path := hostPath()
	if image.Root != "" {
		path = image.Root + ":" + path
	}
	return variables{
		"PATH":                    path,
		"HOME":                    w.dir,
		"TMPDIR":                  filepath.Join(w.dir, "tmp"),
		"HOSTNAME":                w.current().Name,
		"KUBERNETES_SERVICE_HOST": host,
		"KUBERNETES_SERVICE_PORT": port,
	}
}

// tellAgent tells an agent how this node differs from one of Kubernetes, whatever the container's variables say.
func (w *worker) tellAgent(env variables, m mounts) {
	env[contract.RuntimeReapsEnv] = "true" // as the shim does
	env[contract.RuntimeAddressEnv] = w.ip
	for name, path := range w.node.options.PathVariables {
		if dir := m.rewrite(path); dir != path {
			env[name] = dir
		}
	}
}

func (w *worker) workingDir(c *corev1.Container, image Image, m mounts) string {
	if c.WorkingDir == "" {
		return w.dir
	}
	if inImage := filepath.Join(image.Root, c.WorkingDir); image.Root != "" && isDir(inImage) {
		return inImage
	}
	return m.rewrite(c.WorkingDir)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// program finds the file of argv[0], in the image before the machine.
func program(name string, image Image, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if inImage := filepath.Join(image.Root, name); image.Root != "" && isProgram(inImage) {
			return inImage, nil
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if !isProgram(name) {
			return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
		}
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if file := filepath.Join(dir, name); isProgram(file) {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
