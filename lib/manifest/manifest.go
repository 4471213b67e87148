// Package manifest reads a stream of Kubernetes manifests, YAML or JSON, and gives the same bytes back.
//
// In goes the output of a renderer; out come its documents, what Argo CD will make of each (Heads, Decode), whether one can
// contain a word at all (MayHave), and the stream again: byte for byte (Bytes), or with some objects annotated or left out
// and all others untouched (Rewrite).
//
// The measure is Argo CD's own reading of a plugin's output: gitops-engine pkg/utils/kube.SplitYAML, that is
// k8s.io/apimachinery/pkg/util/yaml.YAMLOrJSONDecoder (v0.31 in Argo CD 2.14, v0.34 in 3.2) and sigs.k8s.io/yaml. What those
// would drop without a word is an error here.
//
// The package knows nothing of what an object means beyond its identity, metadata and items, and does no I/O.
package manifest

import "bytes"

// Stream is a parsed stream of manifests.
type Stream struct {
	// Documents are the documents with content, in order. Those that are empty, null or have only comments are not among
	// them; their bytes stay in the stream.
	Documents []*Document

	raw []byte
	// json: the stream begins with "{", so Argo CD takes it for JSON.
	json bool
	// mixed: it has separator lines, or a comment after JSON.
	mixed bool
}

// Document is one document of a stream: usually one object, sometimes a list of objects.
type Document struct {
	// Number counts the documents with content, from 1.
	Number int
	// Line is the line of the stream, from 1, of the document's first content that is neither blank nor comment.
	Line int
	// Raw is the document's text as it stands in the stream, without the separator lines around it.
	Raw []byte

	at int // offset of Raw in the stream
	// led: the separator line before the document is, to Argo CD's decoder, a part of it (see chunk).
	led bool
	// bare: a JSON document without a separator line before it, at the start of the stream or right behind another.
	bare bool
	// json: Argo CD reads the document as JSON first.
	json bool
	// odd: it has line breaks or marks that only a YAML library deals with right: a CR alone, NEL, LS, PS, or a byte order
	// mark inside.
	odd bool
}

// Bytes gives the stream back byte for byte.
//
// There is one exception. Argo CD before 3.0 (apimachinery up to v0.31) takes a stream that begins with "{" for JSON throughout,
// and fails at the first separator, or at a comment. So if such a stream has either after JSON, it gets a separator at its
// start, which makes it YAML to every version; and one between JSON documents that have none, since YAML would drop the second.
func (s *Stream) Bytes() []byte {
	if !s.json || !s.mixed {
		return s.raw
	}
	out := make([]byte, 0, len(s.raw)+len(separator))
	from := s.Documents[0].at
	for _, d := range s.Documents {
		if d.bare {
			out = appendLine(out, s.raw[from:d.at])
			out = append(out, separator...)
			from = d.at
		}
	}
	return append(out, s.raw[from:]...)
}

const separator = "---\n"

// appendLine appends text, and a line end if it has none.
func appendLine(out, text []byte) []byte {
	out = append(out, text...)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return out
}

// starts gives the offset of the separator line before the document, or of its text if there is none.
func (s *Stream) starts(d *Document) int {
	if d.bare || d.at == 0 {
		return d.at
	}
	return bytes.LastIndexByte(s.raw[:d.at-1], '\n') + 1
}
