{{- define "singletonjob.entrypointArgs" -}}
- --entrypoint={{ .Values.entrypoint.enabled }}
- --entrypoint-pull-secrets={{ .Values.entrypoint.pullSecrets }}
{{- with .Values.entrypoint.insecureRegistries }}
- --entrypoint-insecure-registries={{ join "," . }}
{{- end }}
{{- if .Values.entrypoint.caConfigMap }}
- --entrypoint-ca-file=/registry-ca/ca.crt
{{- end }}
{{- end -}}

{{- /* Pull secrets, where they are asked for: read of the API server when an image is looked up, and kept nowhere. */ -}}
{{- define "singletonjob.entrypointRules" -}}
{{- if and .Values.entrypoint.enabled .Values.entrypoint.pullSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end -}}
