package main

import (
	"context"
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/fence/fencekube"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// inKubernetes writes to one key of a ConfigMap, whose versions are the log.
type inKubernetes struct {
	name string
	maps corev1.ConfigMapInterface
}

func openKubernetes(t offer.Target) (*inKubernetes, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	namespace, name, _ := strings.Cut(string(t.Log), "/")
	if t.Fenced {
		if config, err = (fencekube.Fence{Job: name, Token: t.Token}).Config(config); err != nil {
			return nil, err
		}
	}
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &inKubernetes{name: name, maps: client.ConfigMaps(namespace)}, nil
}

func (k *inKubernetes) Write(ctx context.Context, text string) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"last": text}})
	if err != nil {
		return err
	}
	_, err = k.maps.Patch(ctx, k.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
