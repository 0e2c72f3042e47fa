package controller

// What the operator may do, and why. There is no wildcard, and no secret is read unless the chart's entrypoint.pullSecrets, which
// grants it, asks for that. The verbs of one resource that serve one
// purpose stand together; generated into config/rbac and the chart.

// SingletonJobs are the input. The operator writes nothing but their status, and deletes those that are finished and ask for that
// (spec.ttlSecondsAfterFinished).
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs/status,verbs=update
// Where the API server checks it (OwnerReferencesPermissionEnforcement), an owner that blocks its deletion needs this.
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs/finalizers,verbs=update

// Candidates: create and delete them; patch sets their role label, and adopts those that lost their owner; get looks what
// is in the way of a name.
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch

// The Lease: made by the operator alone, updated to ask for a handover and to release it for a holder that is proven
// dead, deleted when the job is gone. The agents' roles grant get, watch and update on one Lease each, and nobody may
// grant what he does not hold.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;update;delete

// What the agents run as and may do. get looks whose an object is before it is written; patch is server-side apply,
// which needs create for objects that do not exist. The garbage collector deletes them; but a binding to another role is
// recreated, because to which role it binds can't be changed.
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch

// The Service of a job that asks for one: it names the active pod, so it is updated at each change of holder. get looks whose one
// is that is in the way.
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;delete

// The workloads that spec.workloadRef may name: their templates, whether they are scaled to 0, whether a Deployment's ReplicaSets are,
// and whose the pods are that their selectors match. They are never written.
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list

// A claim that one node alone can use is why no standby gets ready elsewhere. Only those that a job's pods name are read.
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get

// The out-of-service taint is proof that a node's pods are dead, and what else nodes say is which may take a standby.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// What happened is said in Events. They are written once and never changed.
// +kubebuilder:rbac:groups="",resources=events,verbs=create
