{{/* The operator's rights in each namespace in which it works, generated from markers in the code. A rule that depends on a value is
added here, so that it applies to all namespaces and to watchNamespaces alike. */}}
{{- define "singletonjob.rules" -}}
{{- range (.Files.Get "generated/role.yaml" | fromYaml).rules }}
{{- $rule := . }}
{{- with without .resources "nodes" }}
{{- list (merge (dict "resources" .) $rule) | toYaml }}
{{ end }}
{{- end }}
{{- include "singletonjob.entrypointRules" . }}
{{- end -}}

{{/* The operator's rights on nodes, which are in no namespace. */}}
{{- define "singletonjob.rules.nodes" -}}
{{- range (.Files.Get "generated/role.yaml" | fromYaml).rules }}
{{- if has "nodes" .resources }}
{{- list (merge (dict "resources" (list "nodes")) .) | toYaml }}
{{ end }}
{{- end }}
{{- end -}}

{{/* "true" if the operator may read nodes, otherwise empty. */}}
{{- define "singletonjob.readNodes" -}}
{{- if kindIs "bool" .Values.nodes.read | ternary .Values.nodes.read (empty .Values.watchNamespaces) -}}
true
{{- end -}}
{{- end -}}

{{/* The operator's service account, as the subject of these rights. */}}
{{- define "singletonjob.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "singletonjob.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}
