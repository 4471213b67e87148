// Package policy decides demands by the text of a signer's policy.
//
// In go a policy text with the name of its format and a demand, out comes granted, not granted with the signer's own reason, or
// unknown. What the replicas of a signer have loaded is combined here too (Evidence); where that comes from is package loaded's
// business. The package reads no files, no clock and no cluster.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// Decision is the three-valued answer to "would this demand be granted?".
type Decision string

const (
	Granted    Decision = "granted"
	NotGranted Decision = "notGranted"
	// Unknown means that it could not be told; it is never taken for Granted.
	Unknown Decision = "unknown"
)

// Reasons of a refusal, as they stand in the Denied condition of the public pod-cert-signer (v0.4.0). UnsupportedKeyType is also the
// one that Kubernetes itself knows (certificates.k8s.io/v1).
const (
	NoGrant              = "NoGrant"
	UnsupportedKeyType   = "UnsupportedKeyType"
	DNSNameNotGranted    = "DNSNameNotGranted"
	InvalidMaxExpiration = "InvalidMaxExpiration"
)

// Answer is what one policy makes of one demand.
type Answer struct {
	Decision Decision
	// Reason is the signer's own word for a refusal (NoGrant, UnsupportedKeyType, ...); empty when granted.
	Reason string
	// Message says the same for people; empty when granted.
	Message string
}

func refused(reason, format string, args ...any) Answer {
	return Answer{Decision: NotGranted, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) Answer {
	return Answer{Decision: Unknown, Message: fmt.Sprintf(format, args...)}
}

// Policy decides demands. Implementations are safe for concurrent use and never change after Parse.
type Policy interface {
	Decide(d *demand.Demand) Answer
}

// Revision is the name of a policy text: "sha256:" and the lower-case hex digest of its bytes.
func Revision(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Policy formats.
const (
	FormatPodCertSigner = "pod-cert-signer"
	FormatGrants        = "grants"
	FormatCEL           = "cel"
)

// Format reads the policy texts of one signer. It is safe for concurrent use.
type Format struct {
	parse func(text []byte) (Policy, error)
}

// Compile gives the format of that name. granted is the CEL expression of format cel and empty for the others; what is wrong with it
// is said here, with its position, and not again for every policy text.
func Compile(format, granted string) (Format, error) {
	if format != FormatCEL && granted != "" {
		return Format{}, fmt.Errorf("policy format %q takes no granted expression: remove it, or use format cel", format)
	}
	switch format {
	case FormatPodCertSigner:
		return Format{parse: parsePodCertSigner}, nil
	case FormatGrants:
		return Format{parse: parseGrants}, nil
	case FormatCEL:
		return compileCEL(granted)
	}
	return Format{}, fmt.Errorf("unknown policy format %q: use pod-cert-signer, grants or cel", format)
}

// Parse reads a policy text. An error means that nothing can be decided by it: for pod-cert-signer, that the signer refuses to start
// with it.
func (f Format) Parse(text []byte) (Policy, error) {
	return f.parse(text)
}

// keyTypes that the kubelet can make (Kubernetes 1.37, core/v1 PodCertificateProjection.keyType). A request for any other never
// gets as far as the signer.
var keyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}
