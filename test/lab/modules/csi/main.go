// Command csi is a driver of volumes for one node of the lab, as storage vendors write them, for tests of what Kubernetes does with volumes
// that are attached. Each volume is a directory that all nodes see, so nothing but Kubernetes keeps two nodes from one. It
// attaches nothing: whoever tests says when that is done. It ends with its standard input.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubelet is the directory of the node's kubelet.
const kubelet = "/var/lib/kubelet"

func main() {
	name := flag.String("name", "csi.lab", "what the driver is called")
	node := flag.String("node", "", "name of this node")
	volumes := flag.String("volumes", "", "directory with one for each volume")
	flag.Parse()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx, &driver{name: *name, node: *node, volumes: *volumes}); err != nil {
		fmt.Fprintln(os.Stderr, "csi:", err)
		os.Exit(1)
	}
}

// run serves the kubelet until ctx ends: the driver on one socket, and on another one where that is.
func run(ctx context.Context, d *driver) error {
	d.socket = filepath.Join(kubelet, "plugins", d.name, "csi.sock")
	driving, registering := grpc.NewServer(), grpc.NewServer()
	csi.RegisterIdentityServer(driving, d)
	csi.RegisterNodeServer(driving, d)
	registration.RegisterRegistrationServer(registering, d)
	ended := make(chan error, 2)
	for path, server := range map[string]*grpc.Server{
		d.socket: driving,
		filepath.Join(kubelet, "plugins_registry", d.name+"-reg.sock"): registering,
	} {
		l, err := listen(path)
		if err != nil {
			return err
		}
		defer server.Stop()
		go func() { ended <- server.Serve(l) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// listen takes the place of an earlier driver, which may have ended with its node.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	name, node, volumes, socket string
}

// GetInfo tells the kubelet where the driver is.
func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus hears what the kubelet made of it.
func (d *driver) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !r.GetPluginRegistered() {
		fmt.Fprintln(os.Stderr, "csi: the kubelet refuses the driver:", r.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// GetPluginInfo is asked of every driver.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities: no controller.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe is whether it runs.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// NodeGetInfo names the node.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities: none, so that a volume is put in its place in one step.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts a volume for a pod. The kubelet asks again where it has heard no answer.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	source, target := filepath.Join(d.volumes, filepath.Base(r.GetVolumeId())), r.GetTargetPath()
	for _, dir := range []string{source, target} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if err := os.Chmod(source, 0o777); err != nil { // for pods of every user
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := unmount(target); err != nil {
		return nil, err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return nil, status.Errorf(codes.Internal, "mount %s on %s: %v", source, target, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume undoes that.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	target := r.GetTargetPath()
	if err := unmount(target); err != nil {
		return nil, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unmount takes away what is mounted there, if anything is.
func unmount(target string) error {
	err := unix.Unmount(target, 0)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
}
