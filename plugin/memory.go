package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/hold"
)

// The plugin is started anew for every render, and remembers one thing: the Application as it last read it. Without it an API server
// that cannot be read would make all that was ever released look new. It is kept where the sidecar has its temporary files, which
// nobody else can write to, for as long as the pod lives.
//
// What is remembered grows old: the Application may have been synced since to a revision that no longer has a demand. So every render of
// the source also leaves there which demands it has had.
type memory struct {
	Application *Application `json:"application"`
	// Since are the demands, by hold.DemandKey, that every render has had since the Application was read.
	Since []string `json:"since"`
}

// maxMemory is the longest file that is taken for one, in bytes; etcd takes 1.5 MB of an Application.
const maxMemory = 32 << 20

// memoryFolder must be this user's alone: what is found there decides what counts as released.
func (c *call) memoryFolder() (string, error) {
	dir := c.Getenv("TMPDIR")
	if dir == "" {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, fmt.Sprintf("grantfirst-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !isOurs(info) {
		return "", fmt.Errorf("%s is not a folder of this user's alone", dir)
	}
	return dir, nil
}

func isOurs(info os.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Getuid()
}

// memoryFile is that of the Application's source: each source is rendered, and has its demands, by itself.
func (c *call) memoryFile() (string, error) {
	dir, err := c.memoryFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(c.controlPlane() + "\x00" + c.app + "\x00" + c.askedFor()))
	return filepath.Join(dir, "application-"+hex.EncodeToString(sum[:16])+".json"), nil
}

// remember keeps what is needed of the Application, and what is rendered now. Where that does not work, an older one must not stay.
func (c *call) remember(a *Application, demands []demand.Demand) {
	if c.onlyReads {
		return
	}
	m := memory{Application: a.essential(), Since: keysOf(demands)}
	if file, err := c.memoryFile(); err == nil && m.write(file) != nil {
		_ = os.Remove(file)
	}
}

// recall gives what is remembered, and which demands all renders since have had, not counting this one.
func (c *call) recall() (*Application, map[string]bool, error) {
	m, _, err := c.readMemory()
	if err != nil {
		return nil, nil, err
	}
	since := map[string]bool{}
	for _, key := range m.Since {
		since[key] = true
	}
	return m.Application, since, nil
}

// alsoRendered takes out of what is remembered the demands that this render does not have.
func (c *call) alsoRendered(demands []demand.Demand) {
	m, file, err := c.readMemory()
	if err != nil || c.onlyReads {
		return
	}
	now := map[string]bool{}
	for _, key := range keysOf(demands) {
		now[key] = true
	}
	kept := []string{}
	for _, key := range m.Since {
		if now[key] {
			kept = append(kept, key)
		}
	}
	if len(kept) == len(m.Since) {
		return
	}
	if m.Since = kept; m.write(file) != nil {
		_ = os.Remove(file)
	}
}

func keysOf(demands []demand.Demand) []string {
	keys := make([]string, len(demands))
	for i := range demands {
		keys[i] = hold.DemandKey(&demands[i])
	}
	return keys
}

func (c *call) readMemory() (*memory, string, error) {
	name, err := c.memoryFile()
	if err != nil {
		return nil, "", err
	}
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, "", err
	}
	if !info.Mode().IsRegular() || !isOurs(info) || info.Size() > maxMemory {
		return nil, "", fmt.Errorf("%s is no memory of this user's", name)
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxMemory))
	if err != nil {
		return nil, "", err
	}
	var m memory
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, "", err
	}
	if m.Application == nil || m.Application.instanceName(c.controlPlane()) != c.app {
		return nil, "", errors.New("what is remembered is another Application")
	}
	return &m, name, nil
}

// write puts the file in place whole: two renders of one Application may run at once.
func (m *memory) write(name string) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), "new-")
	if err != nil {
		return err
	}
	_, err = temporary.Write(raw)
	if closing := temporary.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}
