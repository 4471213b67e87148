// Command enter starts a container's command in the container's files. The
// hollow node runs it; it is no part of that program because a program with
// the kubelet in it takes a hundred times as long to start.
//
// It reads a rootfs.Spec as JSON from file descriptor 3.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/hollownode/rootfs"
)

func main() {
	file := os.NewFile(3, "specification")
	spec := &rootfs.Spec{}
	err := json.NewDecoder(file).Decode(spec)
	if err == nil {
		file.Close()
		err = rootfs.Enter(spec)
	}
	fmt.Fprintf(os.Stderr, "container: %v\n", err)
	os.Exit(128) // as container runtimes say that a command could not be started
}
