package loaded

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// hashLength is the number of characters of a content hash at the end of a name.
const hashLength = 10

// isContentHashed reports whether the end of the ConfigMap's name is the hash of its content, as kustomize (v5.8, api/hasher
// encodeConfigMap) or kubectl create configmap --append-hash (Kubernetes 1.37, kubectl/pkg/util/hash) makes it. Both hash the JSON of
// kind, name, data and binaryData. kubectl takes the name without the hash and adds immutable; kustomize means to take the name but
// looks it up where it never is, so that it is always empty, and writes base64 in lines. kustomize's own Hasher reads YAML nodes: this
// takes the object as it is, and a test holds the two against each other.
//
// 40 bits are enough against accidents. Who changes such an object in place is found out as long as the other content is there.
func isContentHashed(cm *corev1.ConfigMap) bool {
	cut := len(cm.Name) - hashLength - 1
	if cut < 1 || cm.Name[cut] != '-' {
		return false
	}
	name, suffix := cm.Name[:cut], cm.Name[cut+1:]

	kustomize := map[string]any{"kind": "ConfigMap", "name": "", "data": cm.Data}
	if cm.Data == nil {
		kustomize["data"] = ""
	}
	kubectl := map[string]any{"kind": "ConfigMap", "name": name, "data": cm.Data}
	if len(cm.BinaryData) > 0 {
		wrapped := make(map[string]string, len(cm.BinaryData))
		for k, v := range cm.BinaryData {
			wrapped[k] = wrap(v)
		}
		kustomize["binaryData"], kubectl["binaryData"] = wrapped, cm.BinaryData
	}
	if contentHash(kustomize) == suffix || contentHash(kubectl) == suffix {
		return true
	}
	if cm.Immutable == nil {
		return false
	}
	kubectl["immutable"] = *cm.Immutable
	return contentHash(kubectl) == suffix
}

// contentHash is the first 40 bits of the SHA-256 of the JSON, in hex without vowels and what looks like one.
func contentHash(content map[string]any) string {
	text, err := json.Marshal(content)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return strings.NewReplacer("0", "g", "1", "h", "3", "k", "a", "m", "e", "t").Replace(hex.EncodeToString(sum[:])[:hashLength])
}

// wrap is base64 as kustomize writes it: lines of 70 characters, each with an end, unless one is enough (v5.8, kyaml/yaml/datamap.go).
func wrap(data []byte) string {
	const width = 70
	text := base64.StdEncoding.EncodeToString(data)
	if len(text) < width {
		return text
	}
	var lines strings.Builder
	for len(text) > 0 {
		n := min(width, len(text))
		lines.WriteString(text[:n] + "\n")
		text = text[n:]
	}
	return lines.String()
}
