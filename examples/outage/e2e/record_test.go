package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// recordVariable names a folder: what an ApplicationSet and its Applications were, version by version, is written there as JSON lines. The
// tests of lib/release play what was recorded where Argo CD cannot be built (lib/release/testdata).
const recordVariable = "GRANTFIRST_TEST_RECORD"

// record writes down what the stages are from now on.
func (s *stages) record(as string) {
	s.Helper()
	dir := os.Getenv(recordVariable)
	if dir == "" {
		return
	}
	file, err := os.Create(filepath.Join(dir, as+".jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := file.Close(); err != nil {
			s.Error(err)
		}
	})
	var mutex sync.Mutex
	write := func(o *unstructured.Unstructured) {
		of := o.DeepCopy()
		of.SetManagedFields(nil)
		line, err := json.Marshal(of)
		mutex.Lock()
		defer mutex.Unlock()
		if err == nil {
			_, err = file.Write(append(line, '\n'))
		}
		// At the end of the test the file is closed before the watches are.
		if err != nil && s.Context().Err() == nil {
			s.Error(err)
		}
	}
	s.listenTo(applicationSets, s.name, write)
	for _, a := range []*app{s.app, s.two, s.three} {
		a.listen(write)
	}
}
