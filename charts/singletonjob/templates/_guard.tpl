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

{{/* An instant, as agents write it: in whole seconds of UTC, so that they are in the order of their text. */}}
{{- define "singletonjob.guard.instant" -}}
{{ . }}.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$')
{{- end -}}

{{/* What a Lease says of its newest run up to but without the state of it: the run, and which attempt. Empty for none. */}}
{{- define "singletonjob.guard.attempt" -}}
({{ . }}.size() > 2048 ? '' :
{{ . }}.find(r'^\{"now":\{"id":"[^"]{1,128}",("tick":"[0-9TZ:-]{20}",)?"attempt":[1-9][0-9]{0,9},"state":"'))
{{- end -}}

{{/* A fencing token as package fence reads it, 0 for what is none. */}}
{{- define "singletonjob.fence.token" -}}
({{ . }}.matches('^[1-9][0-9]{0,17}$') ||
{{- printf " %s.matches('^[1-9][0-9]{18}$') && %s <= '9223372036854775807' ? int(%s) : 0)" . . . -}}
{{- end -}}

{{- define "singletonjob.guard.name" -}}
{{- include "singletonjob.clusterName" . | replace ":" "-" -}}
{{- end -}}

{{/* Whom the API server knows the operator as. */}}
{{- define "singletonjob.guard.operator" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "singletonjob.serviceAccountName" .) -}}
{{- end -}}
