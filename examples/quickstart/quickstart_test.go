// Package quickstart_test keeps the quickstart true: its commands show what its README says, and its cluster could exist.
package quickstart_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/hasher"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/loaded"
)

const root = "../.."

// heldObjects are those of app/ that belong to the switch.
var heldObjects = []string{"ConfigMap web", "Deployment web", "Service web", "ServiceAccount web"}

func TestCommandsOfTheReadme(t *testing.T) {
	held := map[string]bool{"before.yaml": true, "one-behind.yaml": true, "after.yaml": false}
	commands := readmeCommands(t)
	if len(commands) != 4 {
		t.Fatalf("the README has %d commands, this test knows 4", len(commands))
	}
	binary := build(t)
	for _, command := range commands {
		verb, live := command[0], filepath.Base(command[slices.Index(command, "--live")+1])
		t.Run(verb+" with "+live, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			run := exec.Command(binary, command...)
			run.Dir, run.Stdout, run.Stderr = root, &stdout, &stderr
			err := run.Run()
			if verb == "explain" {
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 1 {
					t.Fatalf("exit %v, want 1 because something is held\n%s", err, stderr.String())
				}
				for _, want := range []string{"example.com/workload", "shop/web", "NoGrant", "pod-cert-signer-7d9c5b6f48-2xmlq", "pod-cert-signer-6c8f9d7b54-vbn6r"} {
					if !strings.Contains(stdout.String(), want) {
						t.Errorf("the explanation does not have %s:\n%s", want, stdout.String())
					}
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			checkStream(t, stdout.String(), held[live])
		})
	}
}

func readmeCommands(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands [][]string
	for line := range strings.Lines(string(text)) {
		if arguments, ok := strings.CutPrefix(line, "go run ./cmd/grantfirst "); ok {
			commands = append(commands, strings.Fields(arguments))
		}
	}
	return commands
}

func build(t *testing.T) string {
	t.Helper()
	image := t.TempDir()
	command := exec.Command("make", "-s", "image-root", "DIR="+image)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(image, "usr/local/bin/grantfirst")
}

func checkStream(t *testing.T, stream string, held bool) {
	t.Helper()
	files, err := filepath.Glob("app/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		grant := strings.HasSuffix(file, "policy.yaml")
		if asInGit := strings.Contains(stream, string(text)); asInGit != (grant || !held) {
			t.Errorf("%s is printed byte for byte: %t", file, asInGit)
		}
	}
	var skipped, marked []string
	for document := range strings.SplitSeq(stream, "\n---") {
		var object struct {
			Kind     string
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		name := object.Kind + " " + object.Metadata.Name
		if object.Metadata.Annotations["argocd.argoproj.io/hook"] == "Skip" {
			skipped = append(skipped, name)
		}
		if object.Kind == "Hold" {
			marked = append(marked, name)
		}
	}
	slices.Sort(skipped)
	switch {
	case held && (!slices.Equal(skipped, heldObjects) || len(marked) != 1):
		t.Errorf("held: %q, want %q; markers: %q, want one", skipped, heldObjects, marked)
	case !held && len(skipped)+len(marked) > 0:
		t.Errorf("held: %q, markers: %q, want none", skipped, marked)
	}
}

// Otherwise the evidence podVolumes would prove nothing about these pods.
func TestEveryPolicyObjectIsImmutableAndHasTheHashOfItsContentInItsName(t *testing.T) {
	objects := clusters(t)
	for file, cluster := range objects {
		for _, configMap := range cluster.ConfigMaps {
			checkPolicyObject(t, file, configMap)
		}
	}
	wanted := policyInGit(t)
	checkPolicyObject(t, "app/policy.yaml", wanted)
	for _, file := range []string{"after.yaml", "one-behind.yaml"} {
		i := slices.IndexFunc(objects[file].ConfigMaps, func(c corev1.ConfigMap) bool { return c.Name == wanted.Name })
		if i < 0 || objects[file].ConfigMaps[i].Data["policy.json"] != wanted.Data["policy.json"] {
			t.Errorf("%s does not have the policy object of app/policy.yaml", file)
		}
	}
}

func policyInGit(t *testing.T) corev1.ConfigMap {
	t.Helper()
	text, err := os.ReadFile("app/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var configMap corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &configMap); err != nil {
		t.Fatal(err)
	}
	return configMap
}

func checkPolicyObject(t *testing.T, file string, configMap corev1.ConfigMap) {
	t.Helper()
	if configMap.Immutable == nil || !*configMap.Immutable {
		t.Errorf("%s: %s is not immutable", file, configMap.Name)
	}
	// kustomize takes the hash while the object still has its name without one.
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "pod-cert-signer"}, "data": configMap.Data,
	})
	if err != nil {
		t.Fatal(err)
	}
	node, err := kyaml.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := (&hasher.Hasher{}).Hash(node)
	if err != nil {
		t.Fatal(err)
	}
	if want := "pod-cert-signer-" + hash; configMap.Name != want {
		t.Errorf("%s: %s should have the name %s by its content", file, configMap.Name, want)
	}
}

func TestThePodsNameThePoliciesThatTheFileNamesPromise(t *testing.T) {
	wanted := policyInGit(t).Name
	withWanted := map[string]int{"before.yaml": 0, "one-behind.yaml": 1, "after.yaml": 2}
	for file, cluster := range clusters(t) {
		count := 0
		for _, pod := range cluster.Pods {
			policy := pod.Spec.Volumes[0].ConfigMap.Name
			if policy == wanted {
				count++
			}
			if !slices.ContainsFunc(cluster.ConfigMaps, func(c corev1.ConfigMap) bool { return c.Name == policy }) {
				t.Errorf("%s: pod %s names %s, which is not there", file, pod.Name, policy)
			}
		}
		if len(cluster.Pods) != 2 || count != withWanted[file] {
			t.Errorf("%s: %d of %d pods have the new policy, want %d of 2", file, count, len(cluster.Pods), withWanted[file])
		}
	}
}

// clusters reads what stands for the cluster as grantfirst does.
func clusters(t *testing.T) map[string]*loaded.Objects {
	t.Helper()
	text, err := os.ReadFile("config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]*loaded.Objects{}
	for _, file := range []string{"before.yaml", "one-behind.yaml", "after.yaml"} {
		snapshot, err := loaded.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		objects[file], err = snapshot.Objects(t.Context(), &admin.Signers[0])
		if err != nil {
			t.Fatal(err)
		}
	}
	return objects
}
