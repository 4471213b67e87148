package hold

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// Key names a revision of a source together with the parameters it was rendered with, in ten hex digits. It stands in the marker's
// name, which is the only thing of a hold that a later render can read back without rights on the destination cluster.
func Key(revision, source string) string {
	return digits(revision, source)
}

// noRelease is the key in the marker's name where nothing of the source was ever released.
const noRelease = "none"

func digits(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:10]
}

// base is the last released render of the source.
//
// A held sync writes status.history like any other, so the newest entry need not have been released. While a hold lasts, the marker
// in status.resources names the entry that was released last; without a marker there it is the newest.
type base struct {
	key string
	// marked is true where the marker says so, false where the newest entry was taken.
	marked  bool
	entries []Entry
	// at is the index of the released entry in entries, or len(entries) where it is not among them.
	at int

	current     *manifest.Stream
	destination string
	// demands of the released render, by DemandKey; nil until they are asked for, empty where they cannot be had. unknown then says why.
	demands map[string]bool
	unknown string
	since   map[string]bool
}

func newBase(in Input) base {
	b := base{key: noRelease, entries: in.Past, at: len(in.Past), current: in.Stream, destination: in.Namespace, unknown: in.PastUnknown, since: in.Since}
	for _, source := range []string{in.Source, in.OtherSource} {
		// Of two markers, one of each name, that of the name proper knows more: the other was made without the Application.
		if prefix := markerPrefix(in.Application, source); b.fromMarker(in.Tracked, prefix) {
			return b
		}
		if in.OtherSource == "" {
			break
		}
	}
	if len(in.Past) > 0 {
		b.key, b.at = in.Past[0].Key, 0
	}
	return b
}

func (b *base) fromMarker(tracked []Resource, prefix string) bool {
	for _, r := range tracked {
		if key, ok := markerBase(prefix, r.Group, r.Kind, r.Name); ok {
			b.key, b.marked = key, true
			b.at = indexOf(b.entries, key)
			return true
		}
	}
	return false
}

func indexOf(entries []Entry, key string) int {
	for i, e := range entries {
		if e.Key == key {
			return i
		}
	}
	return len(entries)
}

// isNew reports whether the released render lacks the demand. Where that cannot be found out the demand counts as new, and because says
// why: the other mistake would let it go unproven.
func (b *base) isNew(d *demand.Demand) (isNew bool, because string) {
	if b.demands == nil {
		b.load()
	}
	key := DemandKey(d)
	if b.demands[key] && b.since != nil && !b.since[key] {
		return true, "the Application cannot be read, and a render since it last could be did not have this"
	}
	return !b.demands[key], b.unknown
}

func (b *base) load() {
	b.demands = map[string]bool{}
	if b.at == len(b.entries) {
		switch {
		case b.unknown != "":
		case b.key == noRelease:
			b.unknown = "no sync of this source has been released yet"
		default:
			b.unknown = "the sync released last is no longer in the Application's history"
		}
		return
	}
	stream, err := renderOf(b.entries[b.at], b.current)
	if err != nil {
		b.unknown = "what was released last cannot be rendered again: " + err.Error()
		return
	}
	found, err := demand.InStream(stream, b.destination)
	if err != nil {
		b.unknown = "what was released last cannot be read again: " + err.Error()
		return
	}
	for i := range found {
		b.demands[DemandKey(&found[i])] = true
	}
}

// DemandKey is the identity of a demand, wherever it was found.
func DemandKey(d *demand.Demand) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%q %q %q %q %d", d.SignerName, d.Namespace, d.ServiceAccount, d.KeyType, d.MaxExpirationSeconds)
	for _, k := range slices.Sorted(maps.Keys(d.UserAnnotations)) {
		fmt.Fprintf(&s, " %q=%q", k, d.UserAnnotations[k])
	}
	return s.String()
}

// held gives the entries whose renders may still be live in part: those of held syncs, down to the released one.
func (b *base) held() []Entry {
	return b.entries[:min(b.at+1, len(b.entries))]
}

// renderOf is what an entry rendered; the entry of the stream at hand need not be rendered again.
func renderOf(e Entry, current *manifest.Stream) (*manifest.Stream, error) {
	if e.Current {
		return current, nil
	}
	return e.Render()
}
