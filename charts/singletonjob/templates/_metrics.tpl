{{/* Whether metrics are served by HTTPS to who may read them, as "true" or nothing. */}}
{{- define "singletonjob.metricsSecure" -}}
{{- if kindIs "bool" .Values.metrics.secure | ternary .Values.metrics.secure (empty .Values.watchNamespaces) -}}
true
{{- end -}}
{{- end -}}

{{/* Whether this release gives itself the right to ask who may read metrics, as "true" or nothing. */}}
{{- define "singletonjob.metricsRoles" -}}
{{- if include "singletonjob.metricsSecure" . -}}
{{- if kindIs "bool" .Values.metrics.rbac.create | ternary .Values.metrics.rbac.create (empty .Values.watchNamespaces) -}}
true
{{- else if not (kindIs "bool" .Values.metrics.rbac.create) -}}
{{- fail (printf "metrics.secure=true with watchNamespaces takes a right on the whole cluster, to ask whose a token is: set metrics.rbac.create=true if who installs this may give it, else false, and have an administrator of the cluster run: kubectl create clusterrolebinding %s:metrics-auth --clusterrole=system:auth-delegator --serviceaccount=%s:%s" (include "singletonjob.clusterName" .) .Release.Namespace (include "singletonjob.serviceAccountName" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "singletonjob.metricsPort" -}}
{{- .Values.metrics.service.port | default (include "singletonjob.metricsSecure" . | eq "true" | ternary 8443 8080) -}}
{{- end -}}

{{- define "singletonjob.metricsArgs" -}}
{{- if and .Values.metrics.certSecret (not (include "singletonjob.metricsSecure" .)) }}
{{- fail "metrics.certSecret has a certificate that metrics.secure=false does not use: leave one of them out, or set metrics.secure=true" }}
{{- end -}}
- --metrics-bind-address=:{{ include "singletonjob.metricsPort" . }}
- --metrics-secure={{ include "singletonjob.metricsSecure" . | eq "true" }}
{{- if .Values.metrics.certSecret }}
- --metrics-cert-path=/metrics-certs
{{- end }}
{{- end -}}

{{/* How Prometheus asks a replica for its metrics. */}}
{{- define "singletonjob.metricsScheme" -}}
{{- if include "singletonjob.metricsSecure" . -}}
scheme: https
# Prometheus' own account, which has to have the role NAME:metrics-reader or another for /metrics.
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
tlsConfig:
  {{- if .Values.metrics.certSecret }}
  serverName: {{ include "singletonjob.fullname" . }}-metrics.{{ .Release.Namespace }}.svc
  ca:
    secret:
      name: {{ .Values.metrics.certSecret }}
      key: ca.crt
  {{- else }}
  # Nobody signed it: what is read is not secret to who may reach it, and the token is worth no more than the right to read.
  insecureSkipVerify: true
  {{- end }}
{{- end -}}
{{- end -}}
