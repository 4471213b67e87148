{{- define "shop.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- range $name, $value := .Values.labels }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
