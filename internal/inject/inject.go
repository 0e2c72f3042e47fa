// Package inject turns a SingletonJob's template into a candidate Pod. That is the user's Pod with an agent as PID 1 of one container, and
// with the credentials and the configuration that the agent needs.
//
// The package is pure: equal arguments give equal Pods, and it changes no argument. The additions satisfy the Pod Security profile
// "restricted" and use only names that api/v1alpha1 reserves. It changes no container but the gated one.
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

// AgentInImage is the path of the agent in the operator's image.
const AgentInImage = "/agent"

// SafeToEvictAnnotation tells the cluster autoscaler whether it may drain a Pod. It may, because an eviction is a handover. Without
// the annotation, the agent's volume alone would keep the autoscaler from removing the node.
const SafeToEvictAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// Settings are the operator's settings. They are the same for all jobs.
type Settings struct {
	// AgentImage is the image that contains the agent: the operator's own.
	AgentImage string
	// AgentPullPolicy of that image; empty for the cluster's default.
	AgentPullPolicy corev1.PullPolicy
	// AgentImageVolume mounts the agent's image instead of copying the agent out of it. Every node must support this: Kubernetes
	// 1.35 with containerd 2.1, or later.
	AgentImageVolume bool
	// Port is the agent's HTTP port; 0 for contract.DefaultPort. If the Pod's containers use it, the agent gets the next free port.
	Port int32
	// APIHost and APIPort are the address at which Pods of this cluster reach the API server, as the kubelet passed it to the
	// operator. They are empty if the operator does not run in a Pod of the cluster.
	APIHost, APIPort string
	// InjectionVersion overrides the current injection version; 0 keeps it. Tests use it to act as an operator of a later release.
	InjectionVersion int
}

const (
	binVolume         = contract.VolumePrefix + "bin"
	runVolume         = contract.VolumePrefix + "run"
	credentialsVolume = contract.VolumePrefix + "credentials"

	// tokenSeconds is the validity of the agent's token, which the kubelet renews. It is not 3607: the API server takes that value
	// for a legacy client and extends it to a year.
	tokenSeconds = 3600

	// evictAfter replaces Kubernetes' default of five minutes, because a standby on a lost node protects nothing.
	evictAfter = 30

	// nobody is the user of the install container if the Pod runs as root.
	nobody = 65532

	// Candidates with a higher ordinal try a little later to take a Lease that ran out, so that they do not all write at once. The
	// step is the time for one write and for the others to see it. The first running candidate does not wait, and the last waits at
	// most maxJitter.
	jitterStep = 15 * time.Millisecond
	maxJitter  = 50 * time.Millisecond
)

// Pod creates the candidate of job with this ordinal. job must be valid (v1alpha1.Validate), and its entrypoint must be known
// (Unknown). Otherwise Pod returns an error.
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
	gated.Lifecycle = nil // the agent runs its hooks
	gated.Env = append(agentEnv(config, gated, settings), gated.Env...)
	gated.VolumeMounts = append(gated.VolumeMounts, corev1.VolumeMount{Name: credentialsVolume, MountPath: contract.CredentialsDir, ReadOnly: true})
	serveProbes(gated, port)

	spec := &template.Spec
	spec.RestartPolicy = corev1.RestartPolicyAlways
	if config.Run != nil {
		spec.RestartPolicy = corev1.RestartPolicyOnFailure // an agent exits with 0 when there is nothing left to do
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

// PodName is <job>-<hash>-<ordinal>. Up to ordinal 99 it has at most 63 characters, the limit of a host name.
func PodName(job, hash string, ordinal int) string {
	return PodPrefix(job, hash) + strconv.Itoa(ordinal)
}

// PodPrefix is the prefix of the names of the Pods of one template of a job. No other Pod that the operator creates has it.
func PodPrefix(job, hash string) string { return job + "-" + hash + "-" }

// Selector matches all candidates of a job, from every template.
func Selector(job string) map[string]string {
	return map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: job}
}

// ServiceAccountName is the service account of the candidates: the template's, or else one of the job's own.
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

// markReferences marks references to variables whose values the agent, not the kubelet, knows, in a container's command, args and
// env. It returns the secret of the marks, or "" if there are none. The kubelet expands everything else, so command and args stay
// two lists.
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

// marksSecret occurs in no text of the container, because it is a hash of all of them. It does not occur in texts of others either,
// because it depends on the job's UID.
func marksSecret(gated *corev1.Container, job *v1alpha1.SingletonJob) string {
	texts := append([]string{string(job.UID)}, gated.Command...)
	texts = append(texts, gated.Args...)
	for i := range gated.Env {
		texts = append(texts, gated.Env[i].Value)
	}
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// GatedSigns is the number of leading words of a command that show that it runs the agent.
const GatedSigns = 2

// Gated is the index of a Pod's gated container, or -1 if it is not certain. It decides which process is declared dead. It
// therefore relies only on fields that nobody can change after the Pod is created: commands and literal variables. A single sign is
// not enough, because a template, a webhook or an older version of the API may have put it elsewhere. Exactly one container must
// show any sign of the agent, and it must show all signs. The annotation proves nothing; if it contradicts, the result is -1.
// Ephemeral containers are added later and do not count.
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
		RunID:         string(job.UID), // a continuous job has one run
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

// runConfig is the agent's configuration of runs, or nil for a continuous job.
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
		IgnoreCodes:    slices.Sorted(slices.Values(spec.IgnoreOnExitCodes)),
		Leaves:         spec.Schedule == nil || spec.Schedule.Standby != v1alpha1.StandbyWarm,
	}
}

// agentEnv comes before the user's own variables, which may refer to it. It contains every variable that an agent reads, even an unused one
// with an empty value. The reason is that env takes precedence over envFrom and the image, and v1alpha1.Validate refuses these names in the
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

// socketOf is the path of the agent's socket, set after the variables that it refers to. It is in a volume of the Pod. If the agent's image
// is a volume, there is no other, and it is in the directory for shared memory. Processes of every user can write there, even if the root
// file system is read-only. A Pod's containers share that directory, and with hostIPC all Pods of a node do. So the path contains the Pod's
// UID.
func socketOf(settings Settings) string {
	if settings.AgentImageVolume {
		return "/dev/shm/singletonjob-$(" + contract.PodUIDEnv + ").sock"
	}
	return tenure.DefaultSocket
}

// apiEnv is the address at which the agent finds the API server. A kubelet expands a reference from what it has so far: all of
// envFrom, the container's earlier variables, and then the Services. Placed before the user's variables, the reference therefore
// gives the Service, on every node and network, unless envFrom sets the name. In that case the operator passes the address that it
// got itself.
func apiEnv(gated *corev1.Container, settings Settings) []corev1.EnvVar {
	host, port := "$("+APIHostOfService+")", "$("+APIPortOfService+")"
	if len(gated.EnvFrom) > 0 && settings.APIHost != "" && settings.APIPort != "" {
		host, port = settings.APIHost, settings.APIPort
	}
	return []corev1.EnvVar{{Name: contract.APIHostEnv, Value: host}, {Name: contract.APIPortEnv, Value: port}}
}

// The variables in which kubelets pass the address of the API server's Service to every container.
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

// bringAgent puts the agent at the path that the gated container's command uses. It copies the agent from its image into a volume of the
// Pod, or mounts the image as a volume. The container cannot write to that volume, so the process cannot replace its agent. The agent
// writes to a second volume, unless the image is the first one.
func bringAgent(pod *corev1.PodSpec, gated *corev1.Container, settings Settings) {
	bin := corev1.Volume{Name: binVolume}
	gated.VolumeMounts = append(gated.VolumeMounts, corev1.VolumeMount{Name: binVolume, MountPath: contract.AgentDir, ReadOnly: true})
	if settings.AgentImageVolume {
		bin.Image = &corev1.ImageVolumeSource{Reference: settings.AgentImage, PullPolicy: settings.AgentPullPolicy}
		pod.Volumes = append(pod.Volumes, bin)
		return
	}
	bin.EmptyDir = &corev1.EmptyDirVolumeSource{}
	run := corev1.Volume{Name: runVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	pod.InitContainers = append([]corev1.Container{installContainer(pod, gated, settings)}, pod.InitContainers...)
	pod.Volumes = append(pod.Volumes, bin, run)
	gated.VolumeMounts = append(gated.VolumeMounts, corev1.VolumeMount{Name: runVolume, MountPath: contract.RunDir})
}

// installContainer copies the agent into the Pod. It has the resource requests and limits of the gated container. That never raises
// the Pod's request, which is the greater of its init containers' and the sum of its containers'. It keeps the quality of service,
// and passes every quota and limit that the gated container passes.
func installContainer(pod *corev1.PodSpec, gated *corev1.Container, settings Settings) corev1.Container {
	security := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		RunAsNonRoot:             new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	// Otherwise it runs as the user that the Pod, the image, or the cluster's admission sets.
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

// ordinary removes devices and huge pages, which the agent does not use.
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

// serveProbes makes the kubelet probe the agent, which probes the process. A standby is ready if its agent follows the Lease; a
// holder is ready if its process is ready too. The agent has already taken over the user's probes. The kubelet kills an agent only
// after a minute of silence, because a stuck agent keeps its lease for a far shorter time.
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
