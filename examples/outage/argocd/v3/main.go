// Command v3 is what of Argo CD the tests run. It does what the name says that it is called by, as Argo CD's own program does (argo-cd
// v3.2.11 cmd/main.go), which takes half as long again to build because it is Argo CD's command line and its API server, too.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	sets "github.com/argoproj/argo-cd/v3/cmd/argocd-applicationset-controller/commands"
	plugin "github.com/argoproj/argo-cd/v3/cmd/argocd-cmp-server/commands"
	repository "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/spf13/cobra"
)

func main() {
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "argocd-application-controller":
		command = controller.NewCommand()
	case "argocd-applicationset-controller":
		command = sets.NewCommand()
	case "argocd-cmp-server":
		command = plugin.NewCommand()
	case "argocd-repo-server":
		command = repository.NewCommand()
	default:
		fmt.Fprintf(os.Stderr, "%s is no part of Argo CD that the tests run\n", name)
		os.Exit(2)
	}
	if err := command.Execute(); err != nil {
		os.Exit(1)
	}
}
