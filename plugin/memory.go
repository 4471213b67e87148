package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// The plugin is started anew for every render, and remembers one thing: the Application as it last read it. Without it an API server
// that cannot be read would make all that was ever released look new. It is kept where the sidecar has its temporary files, which
// nobody else can write to, for as long as the pod lives.

// memory is the folder of what is remembered. It must be this user's alone: what is found there decides what counts as released.
func (c *call) memory() (string, error) {
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
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is not a folder of this user's alone", dir)
	}
	return dir, nil
}

func (c *call) memoryOfApplication() (string, error) {
	dir, err := c.memory()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(c.controlPlane() + "/" + c.app))
	return filepath.Join(dir, "application-"+hex.EncodeToString(sum[:16])+".json"), nil
}

// remember keeps the JSON of the Application. Where that does not work, there is nothing to recall later, and that is said then.
func (c *call) remember(raw []byte) {
	file, err := c.memoryOfApplication()
	if err != nil {
		return
	}
	// Two renders of one Application may run at once: each writes a file of its own and puts it in place whole.
	temporary, err := os.CreateTemp(filepath.Dir(file), "new-")
	if err != nil {
		return
	}
	_, err = temporary.Write(raw)
	if closing := temporary.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
}

func (c *call) recall() ([]byte, error) {
	file, err := c.memoryOfApplication()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}
