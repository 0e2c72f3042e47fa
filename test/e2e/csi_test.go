//go:build linux

package e2e

import (
	"context"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A driver is a CSI driver of the trial's own, on every node of the lab. It also is what attaches its volumes, which takes no more
// than to say so: when that happens is up to Kubernetes.
type driver struct {
	name string
	// volumes is a directory of the machine with one for each volume.
	volumes string
}

// attaching is the finalizer by which who attaches keeps what is attached.
const attaching = "e2e.singletonjob.io/attacher"

func (x *trial) driver() *driver {
	x.Helper()
	d := &driver{name: x.namespace + ".csi", volumes: x.TempDir()}
	program, err := bed.Lab.Program(x.ctx, "csi")
	x.must(err)
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: d.name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(true), PodInfoOnMount: new(false)},
	}
	x.must(bed.Client.Create(x.ctx, object))
	x.Cleanup(func() { _ = bed.Client.Delete(context.Background(), object) })
	for _, node := range bed.Lab.Nodes {
		stop, err := bed.Lab.Start(node, program, "-name="+d.name, "-node="+node, "-volumes="+d.volumes)
		x.must(err)
		x.Cleanup(func() {
			if err := stop(); err != nil {
				x.Log(err) // its node may have lost its power
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var attacher sync.WaitGroup
	attacher.Go(func() { d.attach(ctx) })
	x.Cleanup(func() {
		cancel()
		attacher.Wait()
	})
	return d
}

// attach attaches and detaches whatever is asked for, until ctx ends.
func (d *driver) attach(ctx context.Context) {
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		var all storagev1.VolumeAttachmentList
		if bed.Client.List(ctx, &all) != nil {
			continue // asked again
		}
		for i := range all.Items {
			if a := &all.Items[i]; a.Spec.Attacher == d.name {
				follow(ctx, a)
			}
		}
	}
}

// follow does what a VolumeAttachment asks for. A refused request is tried again.
func follow(ctx context.Context, a *storagev1.VolumeAttachment) {
	switch {
	case a.DeletionTimestamp != nil:
		a.Finalizers = slices.DeleteFunc(a.Finalizers, func(name string) bool { return name == attaching })
		_ = bed.Client.Update(ctx, a)
	case !a.Status.Attached:
		if !slices.Contains(a.Finalizers, attaching) {
			a.Finalizers = append(a.Finalizers, attaching)
			if bed.Client.Update(ctx, a) != nil {
				return
			}
		}
		a.Status.Attached = true
		_ = bed.Client.Status().Update(ctx, a)
	}
}

// attachedTo are the nodes that have a volume of the driver.
func (d *driver) attachedTo(x *trial) []string {
	x.Helper()
	var all storagev1.VolumeAttachmentList
	x.must(bed.Client.List(x.ctx, &all))
	var nodes []string
	for _, a := range all.Items {
		if a.Spec.Attacher == d.name && a.Status.Attached {
			nodes = append(nodes, a.Spec.NodeName)
		}
	}
	return nodes
}
