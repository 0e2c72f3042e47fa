{{/* What the operator may do in each namespace that it works in, generated from markers in the code. A rule that depends on a
value is added here, so that it holds for all namespaces or for those of watchNamespaces alike. */}}
{{- define "singletonjob.rules" -}}
{{- range (.Files.Get "generated/role.yaml" | fromYaml).rules }}
{{- $rule := . }}
{{- with without .resources "nodes" }}
{{- list (merge (dict "resources" .) $rule) | toYaml }}
{{ end }}
{{- end }}
{{- include "singletonjob.entrypointRules" . }}
{{- end -}}

{{/* What it may do with nodes, which are in no namespace. */}}
{{- define "singletonjob.rules.nodes" -}}
{{- range (.Files.Get "generated/role.yaml" | fromYaml).rules }}
{{- if has "nodes" .resources }}
{{- list (merge (dict "resources" (list "nodes")) .) | toYaml }}
{{ end }}
{{- end }}
{{- end -}}

{{/* Whether it may read nodes, as "true" or nothing. */}}
{{- define "singletonjob.readNodes" -}}
{{- if kindIs "bool" .Values.nodes.read | ternary .Values.nodes.read (empty .Values.watchNamespaces) -}}
true
{{- end -}}
{{- end -}}

{{/* Who has these rights. */}}
{{- define "singletonjob.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "singletonjob.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}
