{{/* Names and labels. */}}

{{- define "tessera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "tessera.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tessera.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tessera.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tessera.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.labels" -}}
{{ include "tessera.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tessera.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tessera.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The secret of the clients' keys; empty if there are none. */}}
{{- define "tessera.apiKeysSecret" -}}
{{- if .Values.apiKeys.existingSecret -}}
{{- .Values.apiKeys.existingSecret -}}
{{- else if .Values.apiKeys.values -}}
{{- include "tessera.fullname" . }}-api-keys
{{- end -}}
{{- end -}}

{{/* The secret of the hub's token; empty if there is none. */}}
{{- define "tessera.hubSecret" -}}
{{- if .Values.hub.existingSecret -}}
{{- .Values.hub.existingSecret -}}
{{- else if .Values.hub.token -}}
{{- include "tessera.fullname" . }}-hub
{{- end -}}
{{- end -}}

{{/* The claim of the models; empty if there is none. */}}
{{- define "tessera.modelsClaim" -}}
{{- if .Values.models.existingClaim -}}
{{- .Values.models.existingClaim -}}
{{- else if .Values.models.create -}}
{{- include "tessera.fullname" . }}-models
{{- end -}}
{{- end -}}
