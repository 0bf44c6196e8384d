{{- define "vcr.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "vcr.labels" -}}
app.kubernetes.io/name: vllm-vcr
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The program needs no rights and writes to volumes only. */}}
{{- define "vcr.container" -}}
image: {{ include "vcr.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "vcr.pod" -}}
automountServiceAccountToken: false
# A service called vllm-vcr would set VLLM_VCR_PORT, which is the flag --port.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "vcr.user" -}}
securityContext:
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* The port of an endpoint that is listened on, else nothing. */}}
{{- define "vcr.listens" -}}
{{- if contains "*" . }}{{ regexFind "[0-9]+$" . }}{{ end }}
{{- end }}
