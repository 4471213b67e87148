package demand

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

// InStream gives the demands of all documents, in the order of the stream. destination is the namespace of objects that name none.
// The error is that of the first document that has one.
func InStream(s *manifest.Stream, destination string) ([]Demand, error) {
	var candidates []*manifest.Document
	for _, d := range s.Documents {
		if d.MayHave(word) {
			candidates = append(candidates, d)
		}
	}
	found := make([][]Demand, len(candidates))
	errs := make([]error, len(candidates))
	var next atomic.Int64
	var failed atomic.Bool
	// Decoding is where the time goes, and two at once keep memory low. Documents are begun in order, so when one fails all before
	// it are begun too, and the first error is the same every time.
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(candidates) {
					return
				}
				if found[i], errs[i] = decoded(candidates[i], destination); errs[i] != nil {
					failed.Store(true)
				}
			}
		})
	}
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(found...), nil
}

// InDocument gives the demands of one document, with Document and Item filled in. The document is decoded only if it may have one.
// The error is a *manifest.Error.
func InDocument(d *manifest.Document, destination string) ([]Demand, error) {
	if !d.MayHave(word) {
		return nil, nil
	}
	return decoded(d, destination)
}

func decoded(d *manifest.Document, destination string) ([]Demand, error) {
	objects, err := d.Decode()
	if err != nil {
		return nil, err
	}
	var all []Demand
	for item, obj := range objects {
		w := newWalk(obj, destination)
		if err := w.run(obj); err != nil {
			return nil, &manifest.Error{Document: d.Number, Line: d.Line, Object: w.object.String(), Err: err}
		}
		for i := range w.found {
			w.found[i].Document, w.found[i].Item = d.Number, item
		}
		all = append(all, w.found...)
	}
	return all, nil
}
