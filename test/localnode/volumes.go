//go:build linux

package localnode

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// volumeSet is the volumes of one pod, each a directory below dir.
type volumeSet struct {
	dir    string
	client kubernetes.Interface
	pod    *corev1.Pod

	mu     sync.Mutex
	host   map[string]string // hostPath volumes: the path on the machine
	tokens map[string]*issued
}

// issued is a service-account token and when to ask for the next one.
type issued struct {
	token string
	renew time.Time
}

func newVolumes(dir string, client kubernetes.Interface, pod *corev1.Pod) *volumeSet {
	return &volumeSet{dir: dir, client: client, pod: pod, host: map[string]string{}, tokens: map[string]*issued{}}
}

// sync makes every volume and brings those that mirror the API server up to date.
func (v *volumeSet) sync(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.pod.Spec.Volumes {
		volume := &v.pod.Spec.Volumes[i]
		if err := v.syncOne(ctx, volume); err != nil {
			return fmt.Errorf("volume %q: %w", volume.Name, err)
		}
	}
	return nil
}

func (v *volumeSet) syncOne(ctx context.Context, volume *corev1.Volume) error {
	dir := filepath.Join(v.dir, "volumes", volume.Name)
	if volume.HostPath != nil {
		v.host[volume.Name] = volume.HostPath.Path
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	content, err := v.content(ctx, volume)
	if err != nil {
		return err
	}
	for path, data := range content {
		if err := replaceFile(filepath.Join(dir, path), data); err != nil {
			return err
		}
	}
	return nil
}

// files is the content of a volume by relative path.
type files map[string][]byte

func (v *volumeSet) content(ctx context.Context, volume *corev1.Volume) (files, error) {
	switch {
	case volume.EmptyDir != nil:
		return nil, nil
	case volume.ConfigMap != nil:
		data, err := configMap(ctx, v.client, v.pod.Namespace, volume.ConfigMap.Name, volume.ConfigMap.Optional)
		return choose(data, volume.ConfigMap.Items), err
	case volume.Secret != nil:
		data, err := secret(ctx, v.client, v.pod.Namespace, volume.Secret.SecretName, volume.Secret.Optional)
		return choose(data, volume.Secret.Items), err
	case volume.DownwardAPI != nil:
		return v.fields(volume.DownwardAPI.Items)
	case volume.Projected != nil:
		return v.projected(ctx, volume.Name, volume.Projected.Sources)
	default:
		return nil, fmt.Errorf("the local node has emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes only")
	}
}

func (v *volumeSet) projected(ctx context.Context, volume string, sources []corev1.VolumeProjection) (files, error) {
	all := files{}
	for i, source := range sources {
		var part files
		var err error
		switch {
		case source.ServiceAccountToken != nil:
			part, err = v.token(ctx, fmt.Sprintf("%s/%d", volume, i), source.ServiceAccountToken)
		case source.ConfigMap != nil:
			var data map[string][]byte
			data, err = configMap(ctx, v.client, v.pod.Namespace, source.ConfigMap.Name, source.ConfigMap.Optional)
			part = choose(data, source.ConfigMap.Items)
		case source.Secret != nil:
			var data map[string][]byte
			data, err = secret(ctx, v.client, v.pod.Namespace, source.Secret.Name, source.Secret.Optional)
			part = choose(data, source.Secret.Items)
		case source.DownwardAPI != nil:
			part, err = v.fields(source.DownwardAPI.Items)
		default:
			err = fmt.Errorf("a projected source that the local node does not know")
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(all, part)
	}
	return all, nil
}

// token asks for a token bound to the pod, and for the next one after four fifths of its life, as the kubelet does.
func (v *volumeSet) token(ctx context.Context, key string, source *corev1.ServiceAccountTokenProjection) (files, error) {
	held := v.tokens[key]
	if held == nil || time.Now().After(held.renew) {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: source.ExpirationSeconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: v.pod.Name, UID: v.pod.UID},
		}}
		if source.Audience != "" {
			request.Spec.Audiences = []string{source.Audience}
		}
		account := v.pod.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		answer, err := v.client.CoreV1().ServiceAccounts(v.pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("a token of service account %q: %w", account, err)
		}
		life := time.Duration(ptr.Deref(answer.Spec.ExpirationSeconds, 3600)) * time.Second
		held = &issued{token: answer.Status.Token, renew: time.Now().Add(life * 4 / 5)}
		v.tokens[key] = held
	}
	return files{source.Path: []byte(held.token)}, nil
}

func (v *volumeSet) fields(items []corev1.DownwardAPIVolumeFile) (files, error) {
	all := files{}
	for _, item := range items {
		if item.FieldRef == nil {
			return nil, fmt.Errorf("file %q: the local node's downwardAPI volumes have fields only", item.Path)
		}
		value, err := field(v.pod, item.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		all[item.Path] = []byte(value)
	}
	return all, nil
}

// choose is all keys as files, or the items named.
func choose(data map[string][]byte, items []corev1.KeyToPath) files {
	if len(items) == 0 {
		return data
	}
	all := files{}
	for _, item := range items {
		if value, ok := data[item.Key]; ok {
			all[item.Path] = value
		}
	}
	return all
}

// replaceFile writes data at once, so that no reader sees half of it, and only if it differs.
func replaceFile(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// mountsOf says where a container's volumes are.
func (v *volumeSet) mountsOf(c *corev1.Container) (mounts, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var m []mount
	for _, wanted := range c.VolumeMounts {
		dir, onHost := v.host[wanted.Name]
		if !onHost {
			dir = filepath.Join(v.dir, "volumes", wanted.Name)
		}
		dir = filepath.Join(dir, wanted.SubPath)
		if _, err := os.Stat(dir); err != nil && wanted.SubPath != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
		m = append(m, mount{path: wanted.MountPath, dir: dir})
	}
	return sortedMounts(m), nil
}
