{{/* "true" if metrics are served over HTTPS and only to authorized clients, otherwise empty. */}}
{{- define "singletonjob.metricsSecure" -}}
{{- if kindIs "bool" .Values.metrics.secure | ternary .Values.metrics.secure (empty .Values.watchNamespaces) -}}
true
{{- end -}}
{{- end -}}

{{/* "true" if this release grants the operator the right to check who may read metrics, otherwise empty. */}}
{{- define "singletonjob.metricsRoles" -}}
{{- if include "singletonjob.metricsSecure" . -}}
{{- if kindIs "bool" .Values.metrics.rbac.create | ternary .Values.metrics.rbac.create (empty .Values.watchNamespaces) -}}
true
{{- else if not (kindIs "bool" .Values.metrics.rbac.create) -}}
{{- fail (printf "metrics.secure=true with watchNamespaces needs a cluster-wide right, to check the tokens of clients: set metrics.rbac.create=true if you may grant it, otherwise set it to false and have a cluster administrator run: kubectl create clusterrolebinding %s:metrics-auth --clusterrole=system:auth-delegator --serviceaccount=%s:%s" (include "singletonjob.clusterName" .) .Release.Namespace (include "singletonjob.serviceAccountName" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "singletonjob.metricsPort" -}}
{{- .Values.metrics.service.port | default (include "singletonjob.metricsSecure" . | eq "true" | ternary 8443 8080) -}}
{{- end -}}

{{- define "singletonjob.metricsArgs" -}}
{{- if and .Values.metrics.certSecret (not (include "singletonjob.metricsSecure" .)) }}
{{- fail "metrics.certSecret is set, but metrics.secure=false uses no certificate: remove one of them, or set metrics.secure=true" }}
{{- end -}}
- --metrics-bind-address=:{{ include "singletonjob.metricsPort" . }}
- --metrics-secure={{ include "singletonjob.metricsSecure" . | eq "true" }}
{{- if .Values.metrics.certSecret }}
- --metrics-cert-path=/metrics-certs
{{- end }}
{{- end -}}

{{/* How Prometheus scrapes a replica. */}}
{{- define "singletonjob.metricsScheme" -}}
{{- if include "singletonjob.metricsSecure" . -}}
scheme: https
# Prometheus' own service account. It needs the role NAME:metrics-reader, or another right to get /metrics.
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
tlsConfig:
  {{- if .Values.metrics.certSecret }}
  serverName: {{ include "singletonjob.fullname" . }}-metrics.{{ .Release.Namespace }}.svc
  ca:
    secret:
      name: {{ .Values.metrics.certSecret }}
      key: ca.crt
  {{- else }}
  # The certificate is self-signed. This is acceptable: the metrics are not secret to clients that can reach them, and the
  # token is worth no more than the right to read them.
  insecureSkipVerify: true
  {{- end }}
{{- end -}}
{{- end -}}
