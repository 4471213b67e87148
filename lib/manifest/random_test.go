package manifest

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var random = flag.Int("random", 5000, "how many random streams TestRandomStreams makes")
var randomSeed = flag.Uint64("random-seed", 1, "where they begin")

// pieces are what random streams are made of: with them, random texts are YAML often enough.
var pieces = []string{
	"kind: A\n", "kind:", "kind: ", "apiVersion: v1\n", "metadata:\n", "metadata: ", "  name: x\n", "  annotations:\n", "    a: b\n", "    b: |\n", "      text\n", "annotations: ", "items:\n", "items: ", "- ", "- kind: B\n", "  kind: C\n",
	"a", "b: ", "c:", " ", "  ", "\n", "\n", "\n  ", "\n    ", "\n- ", "\n  - ", ": ", ":", "? ", "- - ", "{", "}", "[", "]", ", ", ",", "\"", "'", "''", "\\", "\\\n", "\\x41", "\\u0070", "\\n", "\\\"", "#", " # c\n", "# c\n", "&x ", "*x", "!t ", "!!str ", "!!binary ", "<<: ",
	"|", "|\n", "|-\n", "|+\n", ">\n", ">-\n", "|2\n", "1", "-1", "1e3", "0x1", ".5", "true", "null", "~", "y", "2001-01-01", "---\n", "--- # c\n", "---#c\n", "...\n", "%YAML 1.1\n", "\t", "\r\n", "\r", "é", "\ufeff", "\u0085", "\u2028", "`", "@", "%", "*", "&", "!", "<<", "=",
	"{\"kind\":\"A\"}", "{\"kind\": \"A\", \"metadata\": {\"annotations\": {\"a\": \"b\"}}}\n", "{kind: A, x: ", "kind: A\nx: ", "kind: A\nx:\n  ", "kind: A\nmetadata:\n  name: x\n  ", "kind: L\nitems:\n- kind: A\n  x: ", "kind: L\nitems: [{kind: A}, {kind: B}]\n", "\nkind: A\n", "podCertificate", "pod", "Certificate",
}

// TestRandomStreams puts random streams through all that the fuzz targets check.
func TestRandomStreams(t *testing.T) {
	one := func(i int) {
		r := rand.New(rand.NewPCG(*randomSeed, uint64(i)))
		var raw []byte
		if r.IntN(3) == 0 {
			raw = []byte(oddities[r.IntN(len(oddities))])
			for range 1 + r.IntN(3) {
				at, piece := r.IntN(len(raw)+1), pieces[r.IntN(len(pieces))]
				raw = append(append(append([]byte{}, raw[:at]...), piece...), raw[at+r.IntN(min(3, len(raw)-at)+1):]...)
			}
		} else {
			if r.IntN(2) == 0 {
				raw = append(raw, "kind: A\n"...)
			}
			for range 1 + r.IntN(14) {
				raw = append(raw, pieces[r.IntN(len(pieces))]...)
			}
		}
		defer func() {
			if t.Failed() {
				t.Logf("stream %d: %q", i, raw)
			}
		}()
		checkParse(t, raw)
		checkOrdinary(t, raw)
		checkShortcut(t, raw)
		checkHeads(t, raw)
		checkMayHave(t, raw)
		checkRewrite(t, raw, r.Uint64(), "v\n\"", r.IntN(2) == 0)
	}
	for i := 0; i < *random && !t.Failed(); i++ {
		one(i)
	}
}
