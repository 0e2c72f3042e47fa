package controller

// The operator's rights, and their reasons. There is no wildcard. The operator reads no Secret unless the chart's
// entrypoint.pullSecrets asks for it and grants the right. Verbs of one resource that serve one purpose are grouped. The rules are
// generated into config/rbac and the chart.

// SingletonJobs are the input. The operator writes only their status, and deletes finished jobs that set
// spec.ttlSecondsAfterFinished.
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs/status,verbs=update
// If the API server enforces it (OwnerReferencesPermissionEnforcement), an owner reference that blocks the owner's deletion needs this.
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs/finalizers,verbs=update

// Candidates: create and delete them. patch sets their role label, and adopts Pods that lost their owner. get finds out what
// has a name that the operator needs. The agents' roles grant get on the Pods of their job, and a role can grant only rights that
// its creator has.
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch

// The Lease: only the operator creates it. It updates the Lease to ask for a handover and to release it for a holder that is proven
// dead, and deletes it after the job. The agents' roles grant get, watch and update on one Lease each.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;update;delete

// The agents' service accounts and rights. get checks the owner of an object before a write. patch is server-side apply,
// which needs create for objects that do not exist. The garbage collector deletes the objects. delete is for a binding to another
// role: it is recreated, because a binding's role is immutable.
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch

// The Service of a job that asks for one. It selects the active Pod, so it is updated at each change of holder. get checks the owner
// of an existing Service with that name.
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;delete

// The workloads of spec.workloadRef: their templates, whether they and a Deployment's ReplicaSets are scaled to 0, and the owners of
// the Pods that their selectors match. The operator never writes them.
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list

// Autoscalers of such a workload are named in a condition. They are listed only in namespaces with such a job.
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list

// A claim that only one node can use keeps standbys from becoming ready on other nodes. Only claims of a job's Pods are read.
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get

// The out-of-service taint proves that a node's Pods are dead. The other fields show which nodes can take a standby.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// Events report what happened. They are written once and never changed.
// +kubebuilder:rbac:groups="",resources=events,verbs=create
