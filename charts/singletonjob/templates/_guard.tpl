{{/* A decimal number as Go's strconv.ParseInt reads it into an int64; 0 if it is negative or not a number. The argument is the
name of a variable that holds a string. The expression never fails, whatever the string is. */}}
{{- define "singletonjob.guard.number" -}}
({{ . }}.matches('^[+]?0*[0-9]{1,18}$') ||
{{ . }}.matches('^[+]?0*[0-9]{19}$') && {{ . }}.substring({{ . }}.size() - 19) <= '9223372036854775807' ? int({{ . }}) : 0)
{{- end -}}

{{/* A token base; -1 if it is invalid: then no candidate acquires the Lease. */}}
{{- define "singletonjob.guard.base" -}}
({{ . }} == '' ? 0 :
{{ . }}.matches('^[+-]?0*[0-9]{1,16}$') && int({{ . }}) >= 0 && int({{ . }}) <= 4503599627370496 ? int({{ . }}) : -1)
{{- end -}}

{{/* A time as agents write it: in whole seconds of UTC, so that times sort like their texts. */}}
{{- define "singletonjob.guard.instant" -}}
{{ . }}.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$')
{{- end -}}

{{/* The Lease's record of its newest run up to, but without, the run's state: the run's ID, tick and attempt. Empty if there is none. */}}
{{- define "singletonjob.guard.attempt" -}}
({{ . }}.size() > 2048 ? '' :
{{ . }}.find(r'^\{"now":\{"id":"[^"]{1,128}",("tick":"[0-9TZ:-]{20}",)?"attempt":[1-9][0-9]{0,9},"state":"'))
{{- end -}}

{{/* A fencing token as package fence reads it; 0 if it is invalid. */}}
{{- define "singletonjob.fence.token" -}}
({{ . }}.matches('^[1-9][0-9]{0,17}$') ||
{{- printf " %s.matches('^[1-9][0-9]{18}$') && %s <= '9223372036854775807' ? int(%s) : 0)" . . . -}}
{{- end -}}

{{/* The operator's user name at the API server. */}}
{{- define "singletonjob.guard.operator" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "singletonjob.serviceAccountName" .) -}}
{{- end -}}
