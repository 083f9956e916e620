{{/* What the container runs, and how long it may take to end. */}}

{{- define "tessera.args" -}}
- serve
{{- with .Values.model }}
- {{ . | quote }}
{{- end }}
- --platform
- {{ .Values.platform }}
- --host
- "0.0.0.0"
- --port
- "8000"
- --log-format
- json
- --shutdown-delay
- {{ .Values.shutdown.delaySeconds | quote }}
- --shutdown-timeout
- {{ .Values.shutdown.timeoutSeconds | quote }}
{{- range .Values.servedModelNames }}
- --served-model-name
- {{ . | quote }}
{{- end }}
{{- if gt (int .Values.parallel.tensor) 1 }}
- --tensor-parallel-size
- {{ .Values.parallel.tensor | quote }}
{{- end }}
{{- if gt (int .Values.parallel.pipeline) 1 }}
- --pipeline-parallel-size
- {{ .Values.parallel.pipeline | quote }}
{{- end }}
{{- if include "tessera.apiKeysSecret" . }}
- --api-key-file
- /etc/tessera/keys/api-keys
{{- end }}
{{- if .Values.vllmMetrics }}
- --vllm-metrics
{{- end }}
{{- range .Values.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "tessera.env" -}}
- name: HOME
  value: /tmp
- name: TESSERA_CACHE
  value: /cache
- name: HF_HUB_CACHE
  value: /models/hub
{{- if .Values.hub.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with include "tessera.hubSecret" . }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: token
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* 15 s are for the engine to end and its memory to be freed, after the last request. */}}
{{- define "tessera.graceSeconds" -}}
{{- add .Values.shutdown.preStopSeconds .Values.shutdown.delaySeconds .Values.shutdown.timeoutSeconds 15 -}}
{{- end -}}
