// Package image_test proves the image where there is no container runtime: the files of the Dockerfile's last stage, and those alone, are
// laid out in a folder, and grantfirst runs in it as the Dockerfile's user, with the Dockerfile's environment, after a chroot.
package image_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	project = "../.."
	// pluginFile is where argocd-cmp-server looks for its plugin (Argo CD v2.14 common/common.go, DefaultPluginConfigFilePath).
	pluginFile = "/home/argocd/cmp-server/config/plugin.yaml"
)

// stage is what the last stage of the Dockerfile says.
type stage struct {
	base       string
	files      []string
	env        []string
	user       uint32
	entrypoint []string
}

// lastStage reads the Dockerfile. An instruction that this test cannot act out fails it.
func lastStage(t *testing.T) stage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(project, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var last stage
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch instruction := fields[0]; {
		case instruction == "FROM":
			last = stage{base: fields[1]}
		case last.base != "scratch":
		case instruction == "COPY":
			last.files = append(last.files, fields[len(fields)-1])
		case instruction == "ENV":
			last.env = append(last.env, fields[1:]...)
		case instruction == "USER":
			user, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil {
				t.Fatalf("%q: Kubernetes cannot tell that this is not root: %v", line, err)
			}
			last.user = uint32(user)
		case instruction == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.TrimPrefix(line, instruction)), &last.entrypoint); err != nil {
				t.Fatalf("%q: without a shell it must be a JSON list: %v", line, err)
			}
		default:
			t.Fatalf("this test does not know %q", line)
		}
	}
	if last.base != "scratch" {
		t.Fatalf("the last stage is made from %s, this test knows only scratch", last.base)
	}
	return last
}

func imageRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	command := exec.Command("make", "-s", "image-root", "DIR="+root)
	command.Dir = project
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make image-root: %v\n%s", err, output)
	}
	return root
}

func TestTheMakefileBuildsTheBinaryAsTheDockerfileDoes(t *testing.T) {
	line := func(file, with string) string {
		text, err := os.ReadFile(filepath.Join(project, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, command, ok := strings.Cut(line, with); ok {
				// Only the way to write a variable and what follows the common flags differ.
				flags, _, _ := strings.Cut(command, " -o ")
				return strings.NewReplacer("$(VERSION)", "${VERSION}", "\n", "").Replace(flags)
			}
		}
		t.Fatalf("%s has no line with %q", file, with)
		return ""
	}
	if dockerfile, makefile := line("Dockerfile", "RUN CGO_ENABLED=0"), line("Makefile", "GO_BUILD = CGO_ENABLED=0"); dockerfile != makefile {
		t.Errorf("Dockerfile:%s\nMakefile:  %s", dockerfile, makefile)
	}
}

func TestArgoCDCanReadThePluginFile(t *testing.T) {
	// What plugin.yaml may have, by Argo CD v2.14 cmpserver/plugin/config.go. Left out on purpose: version, which would become a part
	// of the plugin's name; discover; init.
	type command struct {
		Command []string `json:"command"`
		Args    []string `json:"args"`
	}
	var plugin struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Generate   command `json:"generate"`
			Parameters struct {
				Dynamic command `json:"dynamic"`
			} `json:"parameters"`
			PreserveFileMode bool `json:"preserveFileMode"`
		} `json:"spec"`
	}
	text, err := os.ReadFile(filepath.Join(project, "plugin.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &plugin); err != nil {
		t.Fatal(err)
	}
	if plugin.APIVersion != "argoproj.io/v1alpha1" || plugin.Kind != "ConfigManagementPlugin" || plugin.Metadata.Name != "grantfirst" {
		t.Errorf("%s %s %q", plugin.APIVersion, plugin.Kind, plugin.Metadata.Name)
	}
	if plugin.Spec.PreserveFileMode {
		t.Error("files of a repository keep their mode, so its programs could be run")
	}
	if len(plugin.Spec.Generate.Command) == 0 || len(plugin.Spec.Parameters.Dynamic.Command) == 0 {
		t.Error("a command is missing")
	}
}

func TestTheImage(t *testing.T) {
	image := lastStage(t)
	root := imageRoot(t)

	t.Run("make image-root lays out what the Dockerfile copies and nothing else", func(t *testing.T) {
		var files []string
		err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				files = append(files, strings.TrimPrefix(name, root))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		slices.Sort(image.files)
		if !slices.Equal(files, image.files) {
			t.Errorf("make image-root: %v\nDockerfile: %v", files, image.files)
		}
		if !slices.Contains(files, pluginFile) {
			t.Errorf("%s is missing", pluginFile)
		}
	})

	t.Run("the binary needs no loader and no libraries", func(t *testing.T) {
		binary, err := elf.Open(filepath.Join(root, image.entrypoint[0]))
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		for _, header := range binary.Progs {
			if header.Type == elf.PT_INTERP {
				t.Error("the binary asks for a loader")
			}
		}
	})

	t.Run("its user is the one of Argo CD's sidecars", func(t *testing.T) {
		if image.user != 999 {
			t.Errorf("user %d", image.user)
		}
	})

	t.Run("in a chroot", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to chroot")
		}
		c := container{root: root, image: image}
		c.mount(t)
		testInside(t, c)
	})
}

// container is the image as Kubernetes starts it in a sidecar.
type container struct {
	root  string
	image stage
}

// Paths inside: a repository where argocd-cmp-server unpacks it (Argo CD v2.14 common.GetCMPWorkDir), and what stands for the cluster.
const (
	repository  = "/tmp/_cmp_server/5f3c/repository"
	application = repository + "/examples/quickstart/app"
	before      = "/tmp/before.yaml"
	after       = "/tmp/after.yaml"
)

// mount adds what a sidecar's volumes bring: the admin's configuration, and /tmp with the repository, which only the plugin's user may
// read.
func (c container) mount(t *testing.T) {
	t.Helper()
	quickstart := filepath.Join(project, "examples/quickstart")
	if err := os.CopyFS(filepath.Join(c.root, application), os.DirFS(filepath.Join(quickstart, "app"))); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"config.yaml": "/etc/grantfirst/config.yaml", "before.yaml": before, "after.yaml": after} {
		text, err := os.ReadFile(filepath.Join(quickstart, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(c.root, to)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.root, to), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(filepath.Join(c.root, "tmp"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if entry.IsDir() {
			mode = 0o700
		}
		return errors.Join(os.Chmod(name, mode), os.Chown(name, int(c.image.user), int(c.image.user)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// run starts a program in the container. A program without a slash is looked up in the image's PATH, as argocd-cmp-server does.
func (c container) run(t *testing.T, env []string, dir string, argv ...string) (stdout []byte) {
	t.Helper()
	env = append(slices.Clone(c.image.env), env...)
	program := argv[0]
	for _, variable := range env {
		if folders, ok := strings.CutPrefix(variable, "PATH="); ok && !strings.Contains(program, "/") {
			for _, folder := range filepath.SplitList(folders) {
				if _, err := os.Stat(filepath.Join(c.root, folder, program)); err == nil {
					program = path.Join(folder, program)
					break
				}
			}
		}
	}
	var stderr bytes.Buffer
	command := &exec.Cmd{
		Path: program, Args: argv, Env: env, Dir: dir, Stderr: &stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Chroot:     c.root,
			Credential: &syscall.Credential{Uid: c.image.user, Gid: c.image.user},
		},
	}
	stdout, err := command.Output()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("chroot is not allowed here")
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, stderr.String())
	}
	return stdout
}

// holdsWeb reports whether Argo CD would leave the quickstart's Deployment web alone.
func holdsWeb(t *testing.T, stream []byte) bool {
	t.Helper()
	for document := range bytes.SplitSeq(stream, []byte("\n---")) {
		var object struct {
			Kind     string
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
		}
		if err := yaml.Unmarshal(document, &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Kind == "Deployment" && object.Metadata.Name == "web" {
			return object.Metadata.Annotations["argocd.argoproj.io/hook"] == "Skip"
		}
	}
	t.Fatalf("no Deployment web in\n%s", stream)
	return false
}

func testInside(t *testing.T, c container) {
	policy, err := os.ReadFile(filepath.Join(project, "examples/quickstart/app/policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// argocd-cmp-server hands on its own environment and adds this (Argo CD v2.14 reposerver/repository, newEnv).
	argoCD := []string{"ARGOCD_APP_NAME=web", "ARGOCD_APP_NAMESPACE=shop", "ARGOCD_APP_REVISION=4bd60e2f8f1cd0c7a3d0f9d5b8e4b7a6c1f2e3d4",
		"ARGOCD_APP_SOURCE_REPO_URL=https://git.example/shop.git", "ARGOCD_APP_SOURCE_PATH=examples/quickstart/app",
		"ARGOCD_APP_SOURCE_TARGET_REVISION=main", "KUBE_VERSION=1.37.2", "KUBE_API_VERSIONS=v1,apps/v1"}
	var plugin struct {
		Spec struct {
			Generate   struct{ Command, Args []string }
			Parameters struct {
				Dynamic struct{ Command, Args []string }
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(c.root, pluginFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &plugin); err != nil {
		t.Fatal(err)
	}
	generate := slices.Concat(plugin.Spec.Generate.Command, plugin.Spec.Generate.Args)
	parameters := slices.Concat(plugin.Spec.Parameters.Dynamic.Command, plugin.Spec.Parameters.Dynamic.Args)

	t.Run("the image's entrypoint tells its version", func(t *testing.T) {
		if out := c.run(t, nil, "/", append(c.image.entrypoint, "version")...); len(bytes.TrimSpace(out)) == 0 {
			t.Error("it prints nothing")
		}
	})
	t.Run("generate holds what the signer would refuse", func(t *testing.T) {
		out := c.run(t, nil, "/", append(c.image.entrypoint, "generate", "--live", before, "--namespace", "shop", "--app", "web", application)...)
		if !bytes.Contains(out, policy) || !holdsWeb(t, out) {
			t.Errorf("the policy object as it is and a held Deployment are not in\n%s", out)
		}
	})
	t.Run("generate lets go what every replica grants", func(t *testing.T) {
		out := c.run(t, nil, "/", append(c.image.entrypoint, "generate", "--live", after, "--namespace", "shop", "--app", "web", application)...)
		if !bytes.Contains(out, policy) || holdsWeb(t, out) {
			t.Errorf("something is held in\n%s", out)
		}
	})
	t.Run("plugin.yaml's generate holds a new demand when the cluster cannot be read", func(t *testing.T) {
		out := c.run(t, argoCD, application, generate...)
		if !bytes.Contains(out, policy) || !holdsWeb(t, out) {
			t.Errorf("the policy object as it is and a held Deployment are not in\n%s", out)
		}
	})
	t.Run("plugin.yaml's parameters prints a list that Argo CD can read", func(t *testing.T) {
		out := c.run(t, argoCD, application, parameters...)
		var announced []struct{ Name string }
		if err := json.Unmarshal(out, &announced); err != nil || len(announced) == 0 {
			t.Errorf("error %v, %d parameters in\n%s", err, len(announced), out)
		}
	})
}
