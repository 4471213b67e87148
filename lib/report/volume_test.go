package report

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// folder is a volume as the kubelet fills it.
type folder struct {
	*testing.T
	path string
}

func newFolder(t *testing.T) *folder { return &folder{t, t.TempDir()} }

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// fill exchanges all files at once.
func (f *folder) fill(generation string, files map[string]string) {
	f.Helper()
	for name, text := range files {
		path := f.file(filepath.Join(generation, name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			f.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(f.file(generation), 0o755), os.Symlink(generation, f.file("..data_tmp")), os.Rename(f.file("..data_tmp"), f.file("..data"))); err != nil {
		f.Fatal(err)
	}
}

func TestAVolumeIsRead(t *testing.T) {
	f := newFolder(t)
	f.fill("..1", map[string]string{"policy.json": "A", "below/policy.json": "B"})
	for name, want := range map[string]string{"policy.json": "A", "below/policy.json": "B"} {
		v, err := openVolume(f.file(name))
		if err != nil {
			t.Fatal(err)
		}
		if generation, text, err := v.read(); generation != "..1" || string(text) != want || err != nil {
			t.Errorf("%s: %q, %q, %v", name, generation, text, err)
		}
	}
	v, err := openVolume(f.file("policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	f.fill("..2", nil)
	if generation, text, err := v.read(); generation != "..2" || text != nil || !os.IsNotExist(err) {
		t.Errorf("without the file: %q, %q, %v", generation, text, err)
	}
	f.fill("..3", map[string]string{"policy.json": strings.Repeat("x", maxUnpacked+1)})
	if generation, text, err := v.read(); generation != "..3" || text != nil || err == nil || !strings.Contains(err.Error(), "more than the 16777216 bytes") {
		t.Errorf("too large: %q, %d bytes, %v", generation, len(text), err)
	}
	f.fill("..4", map[string]string{"policy.json": ""})
	if generation, text, err := v.read(); generation != "..4" || text == nil || len(text) != 0 || err != nil {
		t.Errorf("empty: %q, %v, %v", generation, text, err)
	}
	if err := os.Remove(f.file("..data")); err != nil {
		t.Fatal(err)
	}
	if generation, _, err := v.read(); generation != "" || err == nil {
		t.Errorf("without a volume: %q, %v", generation, err)
	}
}

func TestWhatTheKubeletDoesNotFillIsRefused(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFolder(t)
	f.fill("..1", map[string]string{"policy.json": "A"})
	for path, want := range map[string]string{plain: "mount the whole volume, not a subPath", f.file("..data/policy.json"): "leave ..data out of the path"} {
		if _, err := openVolume(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestATextOfTwoGenerationsIsNeverRead(t *testing.T) {
	f := newFolder(t)
	f.fill("..1", nil)
	if err := syscall.Mkfifo(f.file("..1/policy.json"), 0o600); err != nil {
		t.Skip(err)
	}
	v, err := openVolume(f.file("policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	exchanged := make(chan error)
	go func() {
		pipe, err := os.OpenFile(f.file("..1/policy.json"), os.O_WRONLY, 0) // waits for the one who reads
		if err == nil {
			f.fill("..2", map[string]string{"policy.json": "B"})
			_, err = pipe.WriteString("half of A")
			err = errors.Join(err, pipe.Close())
		}
		exchanged <- err
	}()
	generation, text, err := v.read()
	if generation != "..2" || string(text) != "B" || err != nil {
		t.Errorf("%q, %q, %v", generation, text, err)
	}
	if err := <-exchanged; err != nil {
		t.Error(err)
	}
}
