package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/cluster"
)

// A subject is one way to run the workload as a singleton.
type subject struct {
	key, title string
	// program is the workload's command line, as it begins.
	program string
	// elected says that a standby waits, so that a takeover may be expected soon.
	elected bool
	objects func(r *cluster.Cluster, namespace string, change func(*corev1.PodSpec)) []client.Object
	// ready reports whether the workload runs and a standby, if there is to be one, waits.
	ready func(ctx context.Context, c client.Client, namespace string) (bool, any, error)
}

const electorImage = "local/elector:1"

// name is what everything is called in its own namespace, and the pods' label.
const name = "bench"

func labels() map[string]string { return map[string]string{"app": name} }

func resourceIn(namespace string) fence.Resource { return fence.ResourceOf(namespace, name) }

func subjects() []subject {
	return []subject{
		singletonJob("singletonjob", "SingletonJob 15/10/2", cluster.ClientGo),
		singletonJob("singletonjob-fast", "SingletonJob 5/2.5/0.5", cluster.Fast),
		{
			key: "client-go", title: "client-go elector 15/10/2, Deployment of 2", program: "/elector", elected: true,
			objects: electorObjects, ready: electorReady,
		},
		{key: "deployment", title: "Deployment of 1", program: "/workload", objects: deploymentObjects, ready: podsReady(1)},
		{key: "statefulset", title: "StatefulSet of 1", program: "/workload", objects: statefulSetObjects, ready: podsReady(1)},
	}
}

func singletonJob(key, title string, setting cluster.LeaseSetting) subject {
	return subject{
		key: key, title: title, program: "/workload", elected: true,
		objects: func(r *cluster.Cluster, namespace string, change func(*corev1.PodSpec)) []client.Object {
			job := r.Job(namespace, name, setting)
			job.Spec.Template.Labels = labels()
			change(&job.Spec.Template.Spec)
			return []client.Object{job}
		},
		ready: func(ctx context.Context, c client.Client, namespace string) (bool, any, error) {
			var job v1alpha1.SingletonJob
			err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &job)
			return err == nil && meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionProtected), job.Status, err
		},
	}
}

// unfenced is the workload without a token.
func unfenced(r *cluster.Cluster, namespace string) corev1.Container {
	container := r.Workload(resourceIn(namespace))
	container.Command = append(container.Command, "unfenced")
	return container
}

func template(spec corev1.PodSpec, change func(*corev1.PodSpec)) corev1.PodTemplateSpec {
	change(&spec)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels()}, Spec: spec}
}

func deployment(namespace string, replicas int32, pods corev1.PodTemplateSpec) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels()}, Template: pods},
	}
}

func deploymentObjects(r *cluster.Cluster, namespace string, change func(*corev1.PodSpec)) []client.Object {
	return []client.Object{deployment(namespace, 1, template(cluster.RestrictedPod(unfenced(r, namespace)), change))}
}

func statefulSetObjects(r *cluster.Cluster, namespace string, change func(*corev1.PodSpec)) []client.Object {
	return []client.Object{&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels()}, ServiceName: name,
			Template: template(cluster.RestrictedPod(unfenced(r, namespace)), change),
		},
	}}
}

func electorObjects(r *cluster.Cluster, namespace string, change func(*corev1.PodSpec)) []client.Object {
	container := unfenced(r, namespace)
	container.Image, container.Command = electorImage, []string{"/elector"}
	container.Env = append(container.Env, corev1.EnvVar{Name: "NAMESPACE", Value: namespace})
	spec := cluster.RestrictedPod(container)
	spec.ServiceAccountName = name
	spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight:          100,
			PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels()}},
		}},
	}}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	return []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		},
		deployment(namespace, 2, template(spec, change)),
	}
}

// electorReady asks for both pods on different nodes, and a leader.
func electorReady(ctx context.Context, c client.Client, namespace string) (bool, any, error) {
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases, client.InNamespace(namespace)); err != nil || len(leases.Items) == 0 {
		return false, nil, err
	}
	return podsReady(2)(ctx, c, namespace)
}

func podsReady(want int) func(context.Context, client.Client, string) (bool, any, error) {
	return func(ctx context.Context, c client.Client, namespace string) (bool, any, error) {
		pods, err := podsOf(ctx, c, namespace)
		if err != nil {
			return false, nil, err
		}
		var nodes, seen []string
		for _, p := range pods {
			seen = append(seen, fmt.Sprintf("%s on %q: %s", p.Name, p.Spec.NodeName, p.Status.Phase))
			if cluster.PodReady(p) && !slices.Contains(nodes, p.Spec.NodeName) {
				nodes = append(nodes, p.Spec.NodeName)
			}
		}
		return len(nodes) == want && len(pods) == want, strings.Join(seen, ", "), nil
	}
}

func podsOf(ctx context.Context, c client.Client, namespace string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels()))
	return pods.Items, err
}
