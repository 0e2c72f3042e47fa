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

{{- /* The right to read pull secrets, if enabled: the operator reads them when it looks up an image, and does not store them. */ -}}
{{- define "singletonjob.entrypointRules" -}}
{{- if and .Values.entrypoint.enabled .Values.entrypoint.pullSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end -}}
