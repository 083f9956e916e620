{{/* What depends on the chip: the image's tag, and the resource that device plugins offer. */}}

{{- define "tessera.image" -}}
{{- $tag := default (printf "%s-%s" .Chart.AppVersion .Values.platform) .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "tessera.deviceResource" -}}
{{- $resources := dict
  "cpu" ""
  "cuda" "nvidia.com/gpu"
  "rocm" "amd.com/gpu"
  "xpu" "gpu.intel.com/xe"
  "tpu" "google.com/tpu"
  "gaudi" "habana.ai/gaudi"
  "ascend" "huawei.com/Ascend910"
  "neuron" "aws.amazon.com/neuron"
  "spyre" "ibm.com/spyre_pf"
-}}
{{- default (get $resources .Values.platform) .Values.deviceResource -}}
{{- end -}}

{{- define "tessera.devices" -}}
{{- mul .Values.parallel.tensor .Values.parallel.pipeline -}}
{{- end -}}

{{/* The container's resources, devices among them. */}}
{{- define "tessera.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- with include "tessera.deviceResource" . -}}
{{- $devices := dict . (include "tessera.devices" $ | int) -}}
{{- $resources = mergeOverwrite $resources (dict "requests" $devices "limits" $devices) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
