{{/* The other releases of this chart in the cluster: "operators" maps the operators that this release's guard must know to their
releases; "guards" maps the guards that do not know this release's operator to their releases. A guard limited to some namespaces
does not count: it concerns only the operators that work there. Both maps are empty if no cluster is asked, as with helm template,
and if this release installs nothing cluster-wide, because its installer may have no right to look. */}}
{{- define "singletonjob.others" -}}
{{- $mine := include "singletonjob.guard.operator" . -}}
{{- $operators := dict -}}
{{- $guards := dict -}}
{{- if or .Values.guard.create (and .Values.rbac.create (not .Values.watchNamespaces)) -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- $operator := printf "system:serviceaccount:%s:%s" .metadata.namespace (.spec.template.spec.serviceAccountName | default "default") -}}
{{- if and (hasPrefix "singletonjob-" (dig "labels" "helm.sh/chart" "" .metadata)) (ne $operator $mine) -}}
{{- $_ := set $operators $operator (include "singletonjob.releaseOf" .) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" "" "").items -}}
{{- if and (hasPrefix "singletonjob-" (dig "labels" "helm.sh/chart" "" .metadata)) (hasSuffix "-leases" .metadata.name) -}}
{{- $binding := lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicyBinding" "" .metadata.name -}}
{{- $some := dig "spec" "matchResources" "namespaceSelector" "matchExpressions" list $binding -}}
{{- if not (or $some (contains ($mine | toJson) (first .spec.matchConditions).expression)) -}}
{{- $_ := set $guards .metadata.name (include "singletonjob.releaseOf" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "operators" $operators "guards" $guards | toJson -}}
{{- end -}}

{{/* The helm arguments that name the release of an object. */}}
{{- define "singletonjob.releaseOf" -}}
{{- $by := .metadata.annotations | default dict -}}
{{- printf "%s --namespace %s CHART" (get $by "meta.helm.sh/release-name" | default "RELEASE") (get $by "meta.helm.sh/release-namespace" | default "NAMESPACE") -}}
{{- end -}}

{{/* Remedies for guards that do not know this release's operator. */}}
{{- define "singletonjob.others.upgrade" -}}
{{- $mine := include "singletonjob.guard.operator" . -}}
{{- range (include "singletonjob.others" . | fromJson).guards | values | uniq | sortAlpha }}
  helm upgrade {{ . }} --reuse-values --set 'guard.operators={{ "{" }}{{ $mine }}}'   # and those that it already names
{{- end }}
{{- end -}}
