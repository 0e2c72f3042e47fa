// Package inject turns a SingletonJob's template into a candidate pod: the user's pod with an agent as PID 1 of one
// container, and with the credentials and the configuration that the agent needs.
//
// It is pure: equal arguments give equal pods, and no argument is changed. What it adds satisfies the Pod Security
// profile "restricted" and lies within names that api/v1alpha1 reserves. All containers but the gated one stay as they
// are.
package inject

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/tenure"
)

// AgentInImage is where the agent is in the operator's image.
const AgentInImage = "/agent"

// SafeToEvictAnnotation tells the cluster autoscaler whether it may drain a pod. Eviction is a handover, so it may; without
// the annotation the agent's volume alone would keep a node from being removed.
const SafeToEvictAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// Settings are the operator's own, the same for all jobs.
type Settings struct {
	// AgentImage is the image that has the agent: the operator's own.
	AgentImage string
	// AgentPullPolicy of that image; empty for the cluster's default.
	AgentPullPolicy corev1.PullPolicy
	// AgentImageVolume mounts the agent's image instead of copying the agent out of it. Every node must be able to: Kubernetes 1.35
	// with containerd 2.1, or what is as new.
	AgentImageVolume bool
	// Port is the agent's HTTP port; 0 for contract.DefaultPort. A pod whose containers use it gets the next free one.
	Port int32
	// APIHost and APIPort are where pods of this cluster reach the API server, as the kubelet has told the operator; empty where it
	// runs in no pod of it.
	APIHost, APIPort string
	// InjectionVersion is another than the present one; 0 for that. Tests play an operator of a later release by it.
	InjectionVersion int
}

const (
	binVolume         = contract.VolumePrefix + "bin"
	credentialsVolume = contract.VolumePrefix + "credentials"

	// tokenSeconds is how long the agent's token is valid; the kubelet renews it. Not 3607, which the API server takes
	// for a legacy client and extends to a year.
	tokenSeconds = 3600

	// evictAfter replaces Kubernetes' five minutes: a standby on a lost node protects nothing.
	evictAfter = 30

	// nobody is the user of the install container where the pod runs as root.
	nobody = 65532

	// Candidates of a higher ordinal take a Lease that ran out a little later, so that not all of them write at once: later by
	// what it takes to write and to tell the others. The first that runs does not wait, the last no longer than maxJitter.
	jitterStep = 15 * time.Millisecond
	maxJitter  = 50 * time.Millisecond
)

// Pod is the candidate of job with the given ordinal. job is valid (v1alpha1.Validate), and its entrypoint is known (Unknown); an
// error says why no candidate can be made of one that is not.
func Pod(job *v1alpha1.SingletonJob, ordinal int, settings Settings) (*corev1.Pod, error) {
	job = job.DeepCopy()
	v1alpha1.Default(job)
	index := job.GatedContainer()
	if index < 0 {
		return nil, fmt.Errorf("spec.container %q is not a container of spec.template", job.Spec.Container)
	}
	template := &job.Spec.Template
	gated := &template.Spec.Containers[index]
	hash := settings.Hash(job)
	if err := takeEntrypoint(gated, job); err != nil {
		return nil, err
	}
	port := freePort(job, hash, settings.Port)

	bringAgent(&template.Spec, gated, settings)
	config := agentConfig(job, gated, ordinal, port)
	config.Marks = markReferences(gated, job)
	gated.Command = append([]string{contract.AgentPath, contract.AgentRun, "--"}, gated.Command...)
	config.Pod = PodName(job.Name, hash, ordinal)
	gated.Lifecycle = nil // its hooks are the agent's
	gated.Env = append(agentEnv(config, gated, settings), gated.Env...)
	gated.VolumeMounts = append(gated.VolumeMounts, corev1.VolumeMount{Name: credentialsVolume, MountPath: contract.CredentialsDir, ReadOnly: true})
	serveProbes(gated, port)

	spec := &template.Spec
	spec.RestartPolicy = corev1.RestartPolicyAlways
	if config.Run != nil {
		spec.RestartPolicy = corev1.RestartPolicyOnFailure // an agent ends with 0 when nothing is left to do
	}
	spec.Volumes = append(spec.Volumes, credentials())
	spec.ServiceAccountName = ServiceAccountName(job)
	spec.DeprecatedServiceAccount = ""
	schedulingDefaults(spec, job.Name)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metadata(job, hash, ordinal, gated.Name),
		Spec:       *spec,
	}
	if settings.AgentImage != "" {
		pod.Annotations[contract.AgentImageAnnotation] = settings.AgentImage
	}
	return pod, nil
}

// PodName is <job>-<hash>-<ordinal>: at most 63 characters, a host name's limit, up to ordinal 99.
func PodName(job, hash string, ordinal int) string {
	return PodPrefix(job, hash) + strconv.Itoa(ordinal)
}

// PodPrefix begins the names of the pods of one template of a job, and of no other pods that the operator makes.
func PodPrefix(job, hash string) string { return job + "-" + hash + "-" }

// Selector matches all candidates of a job, of every template.
func Selector(job string) map[string]string {
	return map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: job}
}

// ServiceAccountName is the account that the candidates run as: the template's service account, or one of the job's own.
func ServiceAccountName(job *v1alpha1.SingletonJob) string {
	spec := &job.Spec.Template.Spec
	switch {
	case spec.ServiceAccountName != "":
		return spec.ServiceAccountName
	case spec.DeprecatedServiceAccount != "":
		return spec.DeprecatedServiceAccount
	}
	return job.Name + "-singletonjob"
}

func metadata(job *v1alpha1.SingletonJob, hash string, ordinal int, gated string) metav1.ObjectMeta {
	template := &job.Spec.Template
	meta := metav1.ObjectMeta{
		Namespace:   job.Namespace,
		Name:        PodName(job.Name, hash, ordinal),
		Labels:      template.Labels,
		Annotations: template.Annotations,
		Finalizers:  template.Finalizers,
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind)),
		},
	}
	if meta.Labels == nil {
		meta.Labels = map[string]string{}
	}
	maps.Copy(meta.Labels, Selector(job.Name))
	meta.Labels[contract.TemplateHashLabel] = hash
	meta.Labels[contract.PodLabel] = meta.Name
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	if _, said := meta.Annotations[SafeToEvictAnnotation]; !said {
		meta.Annotations[SafeToEvictAnnotation] = "true"
	}
	meta.Annotations[contract.GatedAnnotation] = gated
	return meta
}

// markReferences keeps references to what the agent alone knows from the kubelet, in a container's command, args and variables, and
// returns the secret of the marks, empty where there are none. All else is the kubelet's to expand: command and args stay two lists.
func markReferences(gated *corev1.Container, job *v1alpha1.SingletonJob) string {
	secret, found := marksSecret(gated, job), false
	mark := func(text string) string {
		return contract.MarkReferences(text, secret, func(name string) bool {
			agents := contract.AgentAlone(job.Spec.Fencing.EnvVar, name)
			found = found || agents
			return agents
		})
	}
	for _, args := range [][]string{gated.Command, gated.Args} {
		for i, arg := range args {
			args[i] = mark(arg)
		}
	}
	for i := range gated.Env {
		gated.Env[i].Value = mark(gated.Env[i].Value)
	}
	if !found {
		return ""
	}
	return secret
}

// marksSecret is in no text of the container, for it is a hash of them all, nor in what others have written, for it depends on the job's UID.
func marksSecret(gated *corev1.Container, job *v1alpha1.SingletonJob) string {
	texts := append([]string{string(job.UID)}, gated.Command...)
	texts = append(texts, gated.Args...)
	for i := range gated.Env {
		texts = append(texts, gated.Env[i].Value)
	}
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// GatedSigns is how many words of a command tell that it runs the agent.
const GatedSigns = 2

// Gated is the index of a pod's gated container, -1 where that is not certain. On it rests who is declared dead, so it
// follows from what nobody can write after the pod was made, commands and literal variables, and from no single sign that a
// template, a webhook or an older version of the API may have put elsewhere: exactly one container shows any sign of the
// agent, and it shows all. The annotation may contradict, and then nothing is certain; it proves nothing. Ephemeral
// containers come later and count for nothing.
func Gated(pod *corev1.Pod) int {
	found := -1
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		runs := len(c.Command) >= GatedSigns && c.Command[0] == contract.AgentPath && c.Command[1] == contract.AgentRun
		configured := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == contract.ConfigEnv })
		switch {
		case !runs && !configured:
			continue
		case !runs || !configured || found >= 0:
			return -1
		}
		found = i
	}
	if named, is := pod.Annotations[contract.GatedAnnotation]; is && (found < 0 || pod.Spec.Containers[found].Name != named) {
		return -1
	}
	return found
}

func agentConfig(job *v1alpha1.SingletonJob, gated *corev1.Container, ordinal int, port int32) contract.AgentConfig {
	lease := &job.Spec.Lease
	grace := ptr.Deref(job.Spec.Template.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	config := contract.AgentConfig{
		Name:          job.Name,
		RunID:         string(job.UID), // a job that runs continuously has one run
		TokenEnv:      job.Spec.Fencing.EnvVar,
		LeaseDuration: contract.Duration(lease.LeaseDuration.Duration),
		RenewDeadline: contract.Duration(lease.RenewDeadline.Duration),
		RetryPeriod:   contract.Duration(lease.RetryPeriod.Duration),
		LockDelay:     contract.Duration(lease.LockDelay.Duration),
		KeepRunning:   lease.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning,
		GracePeriod:   seconds(grace),
		Jitter:        contract.Duration(min(time.Duration(ordinal)*jitterStep, maxJitter)),
		Port:          int(port),
		Probes:        probesOf(gated),
		Hooks:         hooksOf(gated),
		StopSignal:    stopSignalOf(gated),
		Run:           runConfig(job),
	}
	if pre := job.Spec.PreActivate; pre != nil {
		config.PreActivate = &contract.PreActivate{
			Exec: pre.Exec.Command, Timeout: contract.Duration(time.Duration(pre.TimeoutSeconds) * time.Second),
		}
	}
	return config
}

// runConfig is what an agent is told of runs, nil for a job that runs for ever.
func runConfig(job *v1alpha1.SingletonJob) *contract.RunConfig {
	spec := &job.Spec
	if spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion {
		return nil
	}
	return &contract.RunConfig{
		JobUID:         string(job.UID),
		BackoffLimit:   ptr.Deref(spec.BackoffLimit, v1alpha1.DefaultBackoffLimit),
		ActiveDeadline: contract.Duration(time.Duration(ptr.Deref(spec.ActiveDeadlineSeconds, 0)) * time.Second),
		FailCodes:      slices.Sorted(slices.Values(spec.FailOnExitCodes)),
		Leaves:         spec.Schedule == nil || spec.Schedule.Standby != v1alpha1.StandbyWarm,
	}
}

// agentEnv comes before the user's own variables, which may refer to these. Every variable that an agent looks up is in it, an unused
// one too, if only as empty: what is in env can't be set by envFrom or by the image, and v1alpha1.Validate refuses these names in the
// template's env.
func agentEnv(config contract.AgentConfig, gated *corev1.Container, settings Settings) []corev1.EnvVar {
	fromPod := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	env := []corev1.EnvVar{
		{Name: contract.ConfigEnv, Value: config.Encode()},
		fromPod(contract.PodEnv, "metadata.name"),
		fromPod(contract.PodUIDEnv, "metadata.uid"),
		fromPod(contract.NamespaceEnv, "metadata.namespace"),
		fromPod(contract.NodeEnv, "spec.nodeName"),
	}
	env = append(env, apiEnv(gated, settings)...)
	podIP := corev1.EnvVar{Name: contract.PodIPEnv}
	if asksPod(config) {
		podIP = fromPod(contract.PodIPEnv, "status.podIP")
	}
	return append(env,
		corev1.EnvVar{Name: contract.SocketEnv, Value: socketOf(settings)},
		podIP,
		corev1.EnvVar{Name: contract.CredentialsEnv},
		corev1.EnvVar{Name: contract.RuntimeReapsEnv},
		corev1.EnvVar{Name: contract.RuntimeAddressEnv},
	)
}

// socketOf is where the agent listens, after the variables that this refers to: beside its binary. Where that is read-only, it is the directory for
// shared memory, the one place that processes of every user may write where the root file system is read-only, too. A pod's containers share that,
// and so do all pods of a node with hostIPC: hence the pod's UID.
func socketOf(settings Settings) string {
	if settings.AgentImageVolume {
		return "/dev/shm/singletonjob-$(" + contract.PodUIDEnv + ").sock"
	}
	return tenure.DefaultSocket
}

// apiEnv is where the agent finds the API server. A kubelet replaces a reference by what it knows by then: the container's
// variables that came before, all of envFrom first, and then the Services. So in front of the user's variables it is the Service, on
// every node and network, unless envFrom has the name; there the operator says what it was told itself.
func apiEnv(gated *corev1.Container, settings Settings) []corev1.EnvVar {
	host, port := "$("+APIHostOfService+")", "$("+APIPortOfService+")"
	if len(gated.EnvFrom) > 0 && settings.APIHost != "" && settings.APIPort != "" {
		host, port = settings.APIHost, settings.APIPort
	}
	return []corev1.EnvVar{{Name: contract.APIHostEnv, Value: host}, {Name: contract.APIPortEnv, Value: port}}
}

// The variables by which kubelets tell every container of the API server's Service.
const (
	APIHostOfService = "KUBERNETES_SERVICE_HOST"
	APIPortOfService = "KUBERNETES_SERVICE_PORT"
)

func credentials() corev1.Volume {
	return corev1.Volume{Name: credentialsVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
			}}},
		},
	}}}
}

// bringAgent puts the agent where the gated container's command will be it: out of its image into a volume of the pod's own, or
// as a volume that is the image, which is read-only.
func bringAgent(pod *corev1.PodSpec, gated *corev1.Container, settings Settings) {
	bin, mount := corev1.Volume{Name: binVolume}, corev1.VolumeMount{Name: binVolume, MountPath: contract.AgentDir}
	if settings.AgentImageVolume {
		bin.Image = &corev1.ImageVolumeSource{Reference: settings.AgentImage, PullPolicy: settings.AgentPullPolicy}
		mount.ReadOnly = true
	} else {
		bin.EmptyDir = &corev1.EmptyDirVolumeSource{}
		pod.InitContainers = append([]corev1.Container{installContainer(pod, gated, settings)}, pod.InitContainers...)
	}
	pod.Volumes = append(pod.Volumes, bin)
	gated.VolumeMounts = append(gated.VolumeMounts, mount)
}

// installContainer copies the agent into the pod. It asks for what the gated container asks for: that never raises the
// pod's request, which is the greater of its init containers and the sum of its containers, leaves its quality of service
// as it is, and passes any quota and limit that the gated container passes.
func installContainer(pod *corev1.PodSpec, gated *corev1.Container, settings Settings) corev1.Container {
	security := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		RunAsNonRoot:             new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	// Otherwise it runs as the pod says, or the image, or as the user that the cluster's admission picks.
	if s := pod.SecurityContext; s != nil && ptr.Equal(s.RunAsUser, new(int64)) {
		security.RunAsUser = new(int64(nobody))
	}
	return corev1.Container{
		Name:            contract.InstallContainer,
		Image:           settings.AgentImage,
		ImagePullPolicy: settings.AgentPullPolicy,
		Command:         []string{AgentInImage, "install", contract.AgentDir},
		Resources: corev1.ResourceRequirements{
			Requests: ordinary(gated.Resources.Requests),
			Limits:   ordinary(gated.Resources.Limits),
		},
		SecurityContext: security,
		VolumeMounts:    []corev1.VolumeMount{{Name: binVolume, MountPath: contract.AgentDir}},
	}
}

// ordinary leaves out devices and huge pages, which the agent has no use for.
func ordinary(resources corev1.ResourceList) corev1.ResourceList {
	var kept corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if quantity, found := resources[name]; found {
			if kept == nil {
				kept = corev1.ResourceList{}
			}
			kept[name] = quantity
		}
	}
	return kept
}

// serveProbes lets the kubelet ask the agent, which asks the process: a standby is ready when its agent follows the Lease, a
// holder when its process is, too. The user's own probes are the agent's by now. The kubelet kills an agent only after a minute of silence, far longer than any lease is kept by one that is stuck.
func serveProbes(gated *corev1.Container, port int32) {
	name := contract.PortName
	if slices.ContainsFunc(gated.Ports, func(p corev1.ContainerPort) bool { return p.Name == name }) {
		name = "" // names are unique within a container
	}
	gated.Ports = append(gated.Ports, corev1.ContainerPort{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP})
	ask := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}
	}
	gated.ReadinessProbe = &corev1.Probe{ProbeHandler: ask(contract.ReadyPath), PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 3}
	gated.LivenessProbe = &corev1.Probe{ProbeHandler: ask(contract.LivePath), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6}
	gated.StartupProbe = nil
}
