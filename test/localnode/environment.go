//go:build linux

package localnode

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// variables is an environment, by name.
type variables map[string]string

func (v variables) list() []string {
	list := make([]string, 0, len(v))
	for _, name := range slices.Sorted(maps.Keys(v)) {
		list = append(list, name+"="+v[name])
	}
	return list
}

// expand replaces $(NAME) as the kubelet does: an unknown name stays as it is, and $$ is a dollar that means nothing.
func (v variables) expand(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch end := strings.IndexByte(text[i:], ')'); {
		case text[i+1] == '$':
			out.WriteByte('$')
			i++
		case text[i+1] == '(' && end > 0:
			reference := text[i : i+end+1]
			if value, ok := v[reference[2:end]]; ok {
				out.WriteString(value)
			} else {
				out.WriteString(reference)
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

// addFrom adds what the container's own env and envFrom name.
func (v variables) addFrom(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, c *corev1.Container) error {
	for _, source := range c.EnvFrom {
		data, err := allOf(ctx, client, pod.Namespace, source)
		if err != nil {
			return err
		}
		for key, value := range data {
			v[source.Prefix+key] = value
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			v[e.Name] = v.expand(e.Value)
			continue
		}
		value, found, err := valueFrom(ctx, client, pod, e.ValueFrom)
		if err != nil {
			return fmt.Errorf("variable %s: %w", e.Name, err)
		}
		if found {
			v[e.Name] = value
		}
	}
	return nil
}

func allOf(ctx context.Context, client kubernetes.Interface, namespace string, from corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		data, err := configMap(ctx, client, namespace, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		return texts(data), err
	case from.SecretRef != nil:
		data, err := secret(ctx, client, namespace, from.SecretRef.Name, from.SecretRef.Optional)
		return texts(data), err
	}
	return nil, nil
}

func valueFrom(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, from *corev1.EnvVarSource) (value string, found bool, err error) {
	var data map[string][]byte
	var key string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		value, err = field(pod, from.FieldRef.FieldPath)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		key, optional = from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
		data, err = configMap(ctx, client, pod.Namespace, from.ConfigMapKeyRef.Name, optional)
	case from.SecretKeyRef != nil:
		key, optional = from.SecretKeyRef.Key, from.SecretKeyRef.Optional
		data, err = secret(ctx, client, pod.Namespace, from.SecretKeyRef.Name, optional)
	default:
		err = fmt.Errorf("a source that the local node does not know")
	}
	if err != nil {
		return "", false, err
	}
	raw, found := data[key]
	if !found && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("there is no key %q", key)
	}
	return string(raw), found, nil
}

func configMap(ctx context.Context, client kubernetes.Interface, namespace, name string, optional *bool) (map[string][]byte, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %q: %w", name, err)
	}
	data := maps.Clone(found.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range found.Data {
		data[key] = []byte(value)
	}
	return data, nil
}

func secret(ctx context.Context, client kubernetes.Interface, namespace, name string, optional *bool) (map[string][]byte, error) {
	found, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", name, err)
	}
	return found.Data, nil
}

func texts(data map[string][]byte) map[string]string {
	all := make(map[string]string, len(data))
	for key, value := range data {
		all[key] = string(value)
	}
	return all
}

// field is the downward API.
func field(pod *corev1.Pod, path string) (string, error) {
	if of, key, ok := strings.Cut(strings.TrimSuffix(path, "']"), "['"); ok {
		switch of {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	fields := map[string]string{
		"metadata.name":           pod.Name,
		"metadata.namespace":      pod.Namespace,
		"metadata.uid":            string(pod.UID),
		"metadata.labels":         fileOf(pod.Labels),
		"metadata.annotations":    fileOf(pod.Annotations),
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.podIP":            pod.Status.PodIP,
		"status.podIPs":           pod.Status.PodIP,
		"status.hostIP":           pod.Status.HostIP,
		"status.hostIPs":          pod.Status.HostIP,
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("the local node does not know the field %q", path)
	}
	return value, nil
}

// fileOf is how a volume of the downward API writes labels and annotations.
func fileOf(all map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, key+"="+strconv.Quote(all[key]))
	}
	return strings.Join(lines, "\n")
}

// hostPath is where programs of images that the node does not know are looked for.
func hostPath() string { return os.Getenv("PATH") }
