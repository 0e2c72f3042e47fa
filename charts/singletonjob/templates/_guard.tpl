{{/* A decimal number as Go's strconv.ParseInt reads it into an int64, 0 for what is none or negative. The argument is the
name of a variable that holds a string: whatever anybody wrote there, nothing here fails. */}}
{{- define "singletonjob.guard.number" -}}
({{ . }}.matches('^[+]?0*[0-9]{1,18}$') ||
{{ . }}.matches('^[+]?0*[0-9]{19}$') && {{ . }}.substring({{ . }}.size() - 19) <= '9223372036854775807' ? int({{ . }}) : 0)
{{- end -}}

{{/* A token base, -1 for what is none: then nobody acquires the Lease. */}}
{{- define "singletonjob.guard.base" -}}
({{ . }} == '' ? 0 :
{{ . }}.matches('^[+-]?0*[0-9]{1,16}$') && int({{ . }}) >= 0 && int({{ . }}) <= 4503599627370496 ? int({{ . }}) : -1)
{{- end -}}

{{- define "singletonjob.guard.name" -}}
{{- include "singletonjob.clusterName" . | replace ":" "-" -}}
{{- end -}}

{{/* Whom the API server knows the operator as. */}}
{{- define "singletonjob.guard.operator" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "singletonjob.serviceAccountName" .) -}}
{{- end -}}
