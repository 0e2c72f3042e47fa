package adopt

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// keeper is the tool that keeps a workload as its source says, and so sets its replicas again.
type keeper struct {
	tool tool
	// name of the release, the Application, the Kustomization or the HelmRelease, with its namespace if that is known. Anybody who may
	// label the workload chooses it.
	name string
}

type tool uint8

const (
	unknownTool tool = iota
	helm
	argoCD
	fluxKustomize
	fluxHelm
)

// The labels and annotations by which the tools mark what they keep.
const (
	helmRelease       = "meta.helm.sh/release-name"
	helmNamespace     = "meta.helm.sh/release-namespace"
	managedBy         = "app.kubernetes.io/managed-by"
	instance          = "app.kubernetes.io/instance"
	argoTracking      = "argocd.argoproj.io/tracking-id"
	argoInstance      = "argocd.argoproj.io/instance"
	fluxKustomizeName = "kustomize.toolkit.fluxcd.io/name"
	fluxKustomizeIn   = "kustomize.toolkit.fluxcd.io/namespace"
	fluxHelmName      = "helm.toolkit.fluxcd.io/name"
	fluxHelmIn        = "helm.toolkit.fluxcd.io/namespace"
)

// keeperOf finds the tool that keeps a workload. A GitOps tool comes before Helm: it renders charts or runs Helm itself, so Helm's marks
// are there as well.
func keeperOf(labels, annotations map[string]string) keeper {
	application, _, tracked := strings.Cut(annotations[argoTracking], ":")
	switch {
	case labels[fluxHelmName] != "":
		return keeper{fluxHelm, within(labels[fluxHelmIn], labels[fluxHelmName])}
	case labels[fluxKustomizeName] != "":
		return keeper{fluxKustomize, within(labels[fluxKustomizeIn], labels[fluxKustomizeName])}
	case tracked:
		return keeper{argoCD, show.Clean(application)}
	case cmp.Or(labels[argoInstance], annotations[argoInstance]) != "":
		return keeper{argoCD, show.Clean(cmp.Or(labels[argoInstance], annotations[argoInstance]))}
	case annotations[helmRelease] != "":
		return keeper{helm, within(annotations[helmNamespace], annotations[helmRelease])}
	case labels[managedBy] == "Helm": // a chart that was rendered, or whose release was forgotten
		return keeper{helm, show.Clean(labels[instance])}
	}
	return keeper{}
}

func within(namespace, name string) string {
	if namespace == "" {
		return show.Clean(name)
	}
	return show.Clean(namespace + "/" + name)
}

// set tells in one line where the replicas are set, and to which value.
func (k keeper) set(ref v1alpha1.WorkloadRef, replicas int32) string {
	switch k.tool {
	case helm:
		return fmt.Sprintf("the Helm release %s sets the replicas of %s: set them to %d in its values, in most charts with --set replicaCount=%[3]d", k.name, ref, replicas)
	case fluxHelm:
		return fmt.Sprintf("the HelmRelease %s sets the replicas of %s: set them to %d in its spec.values, in most charts with replicaCount: %[3]d", k.name, ref, replicas)
	case fluxKustomize:
		return fmt.Sprintf("the Kustomization %s sets the replicas of %s: set replicas: %d in Git", k.name, ref, replicas)
	case argoCD:
		return fmt.Sprintf("the Argo CD Application %s sets the replicas of %s: set replicas: %d in Git, or list /spec/replicas in its spec.ignoreDifferences "+
			"with the sync option RespectIgnoreDifferences=true", k.name, ref, replicas)
	case unknownTool:
	}
	return fmt.Sprintf("set replicas to %d in the source of %s, such as its chart's values", replicas, ref)
}
