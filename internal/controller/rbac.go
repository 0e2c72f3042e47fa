package controller

// What the operator may do, and why. There is no wildcard, and no secret is read. The verbs of one resource that serve one
// purpose stand together; generated into config/rbac and the chart.

// SingletonJobs are the input. The operator writes nothing but their status.
// +kubebuilder:rbac:groups=singletonjob.io,resources=singletonjobs,verbs=get;list;watch
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

// The out-of-service taint is proof that a node's pods are dead.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// What happened is said in Events. They are written once and never changed.
// +kubebuilder:rbac:groups="",resources=events,verbs=create
