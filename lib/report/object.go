package report

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The contract of the ConfigMap (docs/report.md). Package loaded, which reads it, has these words of its own: it brings CEL along, and
// no signer should have to link that. A test holds the two against each other.
const (
	label   = "grantfirst.dev/report"
	version = "v1"

	keySignerName  = "signerName"
	keyContainer   = "container"
	keyContainerID = "containerID"
	keyPolicy      = "policy"
	keyRevision    = "revision"
	keyLoadedAt    = "loadedAt"
	keyError       = "error"
	keyErrorAt     = "errorAt"
	keyNext        = "nextRevision"

	keyPolicyGzip = "policy.gz"

	// maxUnpacked is the largest policy text, in bytes, that a reader takes.
	maxUnpacked = 16 << 20
	// maxPlain is the largest text that is written as it is: JSON makes up to six bytes of each of it, and a request has 3 MiB.
	maxPlain = 256 << 10
	// maxPacked leaves 24 KiB for all other fields: Kubernetes takes 1 MiB of values in a ConfigMap (1.37, pkg/apis/core/validation
	// ValidateConfigMap, MaxSecretSize).
	maxPacked = 1<<20 - 24<<10
	// maxLine is the longest error that is written, in bytes.
	maxLine = 1000

	namePrefix = "grantfirst-report-"
	// maxName is the longest name that Kubernetes gives a ConfigMap.
	maxName = 253
)

// text is a policy that is in force.
type text struct {
	raw []byte
	at  time.Time

	// Once prepared: exactly one of plain, packed and problem is set, but for the empty text, which is plain.
	prepared bool
	revision string
	plain    string
	packed   []byte
	problem  error
}

// prepare is left to the reporter's goroutine: packing takes time.
func (t *text) prepare() {
	if t.prepared {
		return
	}
	t.prepared = true
	sum := sha256.Sum256(t.raw)
	t.revision = "sha256:" + hex.EncodeToString(sum[:])
	if len(t.raw) <= maxPlain && utf8.Valid(t.raw) {
		t.plain = string(t.raw)
		return
	}
	if len(t.raw) > maxUnpacked {
		t.problem = fmt.Errorf("the policy has %d bytes, and a report takes %d: make it smaller", len(t.raw), maxUnpacked)
		return
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	// A bytes.Buffer takes everything.
	_, _ = z.Write(t.raw)
	_ = z.Close()
	if out.Len() > maxPacked {
		t.problem = fmt.Errorf("the policy has %d bytes, %d of them left by gzip, and a report takes %d: make it smaller", len(t.raw), out.Len(), maxPacked)
		return
	}
	t.packed = out.Bytes()
}

// object is the report of the pod with that UID, about the instance with that ID. Without the ID, or where the text does not fit, it
// says that nothing is loaded, which a reader takes for unknown: to leave an earlier text there would be a lie. The error is about the
// latter. The text is prepared.
func (r *Settings) object(uid types.UID, id string, s state) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       r.Namespace,
			Name:            usualName(r.Pod, r.SignerName),
			Labels:          map[string]string{label: version},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: r.Pod, UID: uid}},
		},
		Data: map[string]string{keySignerName: r.SignerName, keyContainer: r.Container},
	}
	if s.next != "" {
		cm.Data[keyNext] = s.next
	}
	if s.failed != "" {
		cm.Data[keyError], cm.Data[keyErrorAt] = s.failed, rfc3339(s.failedAt)
	}
	if s.text == nil {
		return cm, nil
	}
	if err := s.text.problem; err != nil {
		cm.Data[keyError], cm.Data[keyErrorAt] = line(err.Error()), rfc3339(s.text.at)
		return cm, err
	}
	if id == "" {
		return cm, nil
	}
	cm.Data[keyContainerID], cm.Data[keyRevision], cm.Data[keyLoadedAt] = id, s.text.revision, rfc3339(s.text.at)
	if s.text.packed != nil {
		cm.BinaryData = map[string][]byte{keyPolicyGzip: s.text.packed}
	} else {
		cm.Data[keyPolicy] = s.text.plain
	}
	return cm, nil
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// line makes an error fit into a field: one line, not endless, valid UTF-8.
func line(s string) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\uFFFD")
	if len(s) <= maxLine {
		return s
	}
	return strings.ToValidUTF8(s[:maxLine], "") + "…"
}

func usualName(pod, signerName string) string {
	if name := namePrefix + pod; len(name) <= maxName {
		return name
	}
	return hashedName(pod, signerName)
}

// hashedName is for pods whose names are too long, and for those that report about several signers.
func hashedName(pod, signerName string) string {
	sum := sha256.Sum256([]byte(pod + "/" + signerName))
	hash := "-" + hex.EncodeToString(sum[:5])
	pod = pod[:min(len(pod), maxName-len(namePrefix)-len(hash))]
	// A label of a name ends in a letter or a digit.
	return namePrefix + strings.TrimRight(pod, ".-") + hash
}
