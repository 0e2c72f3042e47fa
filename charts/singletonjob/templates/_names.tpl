{{- define "singletonjob.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* The base of every object's name. It leaves room for suffixes below 63 characters. */}}
{{- define "singletonjob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "singletonjob.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of cluster-scoped objects: those of two releases must not have the same name. */}}
{{- define "singletonjob.clusterName" -}}
{{- if eq .Release.Namespace (include "singletonjob.fullname" .) -}}
{{- .Release.Namespace -}}
{{- else -}}
{{- printf "%s:%s" .Release.Namespace (include "singletonjob.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* The same for kinds whose names cannot have a colon. A namespace has no dot, so no other release has the same name. */}}
{{- define "singletonjob.clusterName.dotted" -}}
{{- include "singletonjob.clusterName" . | replace ":" "." -}}
{{- end -}}

{{- define "singletonjob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "singletonjob.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "singletonjob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "singletonjob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "singletonjob.labels" -}}
{{ include "singletonjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "singletonjob.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}
