package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// dataLink is the link by which the kubelet exchanges all files of a volume at once: it names a folder of its own for each content
// (Kubernetes 1.37, pkg/volume/util/atomic_writer.go).
const dataLink = "..data"

// volume is one file of a mounted ConfigMap, Secret or projected volume.
type volume struct {
	root string // where dataLink is
	file string // below the folder that dataLink names
}

// errMoving: the kubelet exchanges the files just now.
var errMoving = errors.New("the volume changes while it is read")

// openVolume finds the volume in which the file is, or will be.
func openVolume(path string) (*volume, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Readlink(filepath.Join(dir, dataLink)); err == nil {
			file, err := filepath.Rel(dir, path)
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(file, dataLink) {
				return nil, fmt.Errorf("policy %s: leave %s out of the path", path, dataLink)
			}
			return &volume{dir, file}, nil
		}
		if dir == filepath.Dir(dir) {
			return nil, fmt.Errorf("policy %s: it is in no volume that the kubelet fills (no %s in a folder above it): mount the whole volume, not a subPath", path, dataLink)
		}
	}
}

// read gives the text and the generation of the volume that it is of: a name that is never given twice, so that the same one before and
// after says that nothing has changed in between. An error with a generation is about the file, one without about the volume; errMoving
// means that there is nothing to say now. A text is never cut: one larger than a report takes is an error.
func (v *volume) read() (generation string, text []byte, err error) {
	for range 3 {
		generation, err = os.Readlink(filepath.Join(v.root, dataLink))
		if err != nil {
			return "", nil, err
		}
		text, err = readFile(filepath.Join(v.root, generation, v.file))
		after, lost := os.Readlink(filepath.Join(v.root, dataLink))
		if lost != nil {
			return "", nil, lost
		}
		if after == generation {
			return generation, text, err
		}
	}
	return "", nil, errMoving
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxUnpacked+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxUnpacked {
		return nil, fmt.Errorf("policy %s has more than the %d bytes that a report takes: make it smaller", path, maxUnpacked)
	}
	return text, nil
}
