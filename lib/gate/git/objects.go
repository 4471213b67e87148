package git

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// reader asks one running git cat-file --batch for objects.
type reader struct {
	command func() *exec.Cmd

	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

var errMissing = errors.New("the object is not in this clone")

// object gives type and content.
func (r *reader) object(id string) (kind string, data []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		if err := r.start(); err != nil {
			return "", nil, fmt.Errorf("git cat-file: %w", err)
		}
	}
	kind, data, err = r.ask(id)
	if err != nil && !errors.Is(err, errMissing) {
		// What comes next out of the pipe would be the answer to another question.
		_ = r.stop()
	}
	return kind, data, err
}

func (r *reader) start() error {
	cmd := r.command()
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd, r.in, r.out = cmd, in, bufio.NewReaderSize(out, 64<<10)
	return nil
}

func (r *reader) ask(id string) (kind string, data []byte, err error) {
	if _, err := io.WriteString(r.in, id+"\n"); err != nil {
		return "", nil, fmt.Errorf("git cat-file: %w", err)
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return "", nil, fmt.Errorf("git cat-file: %w", err)
	}
	f := strings.Fields(line)
	if len(f) == 2 && f[1] == "missing" {
		return "", nil, fmt.Errorf("%s: %w: fetch it (a partial or damaged clone)", id, errMissing)
	}
	if len(f) != 3 {
		return "", nil, fmt.Errorf("git cat-file: unexpected answer %q", line)
	}
	size, err := strconv.Atoi(f[2])
	if err != nil {
		return "", nil, fmt.Errorf("git cat-file: unexpected answer %q", line)
	}
	data = make([]byte, size+1)
	if _, err := io.ReadFull(r.out, data); err != nil {
		return "", nil, fmt.Errorf("git cat-file: %w", err)
	}
	return f[1], data[:size:size], nil
}

func (r *reader) stop() error {
	if r.cmd == nil {
		return nil
	}
	cmd := r.cmd
	r.cmd = nil
	_ = r.in.Close()
	_, _ = io.Copy(io.Discard, r.out)
	return cmd.Wait()
}

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stop()
}

// blobCache keeps what was read as long as it fits; then it begins anew.
type blobCache struct {
	mu    sync.Mutex
	known map[string][]byte
	size  int
}

const maxCached = 256 << 20

func (c *blobCache) get(id string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.known[id]
	return data, ok
}

func (c *blobCache) put(id string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size += len(data) + 128; c.known == nil || c.size > maxCached {
		c.known, c.size = map[string][]byte{}, len(data)+128
	}
	c.known[id] = data
}

// Blob gives the content of a file by its id. It must not be changed.
func (r *Repository) Blob(id string) ([]byte, error) {
	if data, ok := r.blobs.get(id); ok {
		return data, nil
	}
	if data, ok := r.overlaid.Load(id); ok {
		return data.([]byte), nil
	}
	kind, data, err := r.reader.object(id)
	if err != nil {
		return nil, err
	}
	if kind != "blob" {
		return nil, fmt.Errorf("%s is a %s, not a file", id, kind)
	}
	r.blobs.put(id, data)
	return data, nil
}
