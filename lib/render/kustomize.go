package render

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var kustomizationNames = konfig.RecognizedKustomizationFileNames()

// building serialises kustomize: its OpenAPI schema is a global that every build sets.
var building sync.Mutex

// kustomize is "kustomize build" of dir with its own defaults: files only from the kustomization's own directory, other
// kustomizations from anywhere in the repository, no plugins.
func kustomize(repo fs.FS, dir string, o *Options) (*Result, error) {
	files := &kustomizeFiles{FileSystem: filesys.MakeFsInMemory(), repo: repo, known: map[string]place{}}
	if err := files.edit(dir, o); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	// The command line sorts when it is not told otherwise (kustomize v5 commands/build/reorderoutput.go); the library
	// does not.
	options.Reorder = krusty.ReorderOptionUnspecified

	building.Lock()
	defer building.Unlock()
	objects, err := krusty.MakeKustomizer(options).Run(files, files.abs(dir))
	if files.refused != nil {
		return nil, files.refused
	}
	if err != nil && files.outside && !errors.Is(err, ErrOutside) {
		return nil, fmt.Errorf("kustomize build %s: %w (something %w)", dir, err, ErrOutside)
	}
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w", dir, err)
	}
	stream, err := objects.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w", dir, err)
	}
	return &Result{Stream: stream}, nil
}

// kustomizationFile gives the path of the kustomization in dir, empty if there is none. Two are kustomize's error.
func kustomizationFile(repo fs.FS, dir string) (string, error) {
	for _, name := range kustomizationNames {
		p := path.Join(dir, name)
		if ok, err := exists(repo, p); ok || err != nil {
			return p, err
		}
	}
	return "", nil
}

func readKustomization(repo fs.FS, dir string) (*types.Kustomization, error) {
	file, err := kustomizationFile(repo, dir)
	if err != nil {
		return nil, err
	}
	data, err := readFile(repo, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	k := &types.Kustomization{}
	if err := k.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	k.FixKustomization()
	return k, nil
}

// kustomizeFiles shows the repository to kustomize, which asks a file system for two things only: where a path really
// lies, and what a file holds. Whatever else it might ask is answered by an empty file system in memory.
type kustomizeFiles struct {
	filesys.FileSystem
	repo  fs.FS
	known map[string]place
	// edited replaces the kustomization that parameters change; editedPath is where it really lies.
	edited     []byte
	editedPath string
	// refused is the first thing that kustomize must not do. kustomize takes a kustomization that cannot be read for
	// one that is not there, so the error is kept here.
	refused error
	// outside says that a path led out of the repository. kustomize's errors tell so only in words.
	outside bool
}

// kustomizeRoot is where kustomize sees the repository's root. It is not "/", so that a path with too many ".." does not
// end there.
const kustomizeRoot = "/repository"

func (f *kustomizeFiles) abs(name string) string {
	return path.Join(kustomizeRoot, name)
}

func (f *kustomizeFiles) rel(abs string) (string, error) {
	if abs == kustomizeRoot {
		return ".", nil
	}
	name, ok := strings.CutPrefix(path.Clean(abs), kustomizeRoot+"/")
	if !ok {
		return "", fmt.Errorf("%s %w", abs, ErrOutside)
	}
	return name, nil
}

// CleanedAbs gives the directory and the base name that a path really has; kustomize's load restrictions compare the
// former.
func (f *kustomizeFiles) CleanedAbs(abs string) (filesys.ConfirmedDir, string, error) {
	at, err := f.locate(abs)
	if err != nil {
		return "", "", err
	}
	if at.dir {
		return filesys.ConfirmedDir(f.abs(at.path)), "", nil
	}
	return filesys.ConfirmedDir(f.abs(path.Dir(at.path))), path.Base(at.path), nil
}

// place is where a path really leads.
type place struct {
	path string
	dir  bool
}

// locate resolves a path. kustomize asks for every file twice and for many in one directory.
func (f *kustomizeFiles) locate(abs string) (place, error) {
	if at, ok := f.known[abs]; ok {
		return at, nil
	}
	at, err := f.find(abs)
	if err != nil {
		f.outside = f.outside || errors.Is(err, ErrOutside)
		return place{}, err
	}
	f.known[abs], f.known[f.abs(at.path)] = at, at
	return at, nil
}

func (f *kustomizeFiles) find(abs string) (place, error) {
	name, err := f.rel(abs)
	if err != nil {
		return place{}, err
	}
	parent, base := place{path: "."}, name
	if dir := path.Dir(abs); name != "." && dir != kustomizeRoot {
		if parent, err = f.locate(dir); err != nil {
			return place{}, err
		}
		base = path.Base(name)
	}
	real, info, err := follow(f.repo, parent.path, base)
	if err != nil {
		return place{}, fmt.Errorf("%s: %w", name, err)
	}
	return place{real, info.IsDir()}, nil
}

// ReadFile reads a file, and refuses a kustomization that would go where this package does not go.
func (f *kustomizeFiles) ReadFile(abs string) ([]byte, error) {
	at, err := f.locate(abs)
	if err != nil {
		return nil, err
	}
	data := f.edited
	if data == nil || at.path != f.editedPath {
		if data, err = fs.ReadFile(f.repo, at.path); err != nil {
			return nil, err
		}
	}
	if err := refuse(at.path, data); err != nil {
		if f.refused == nil {
			f.refused = err
		}
		return nil, err
	}
	return data, nil
}

// refuse finds what kustomize would run helm, git or an HTTP client for. It looks at every entry that kustomize takes
// for a path, since all of them may be URLs (kustomize api v0.21.2 internal/loader/fileloader.go), before kustomize
// sees it.
func refuse(name string, data []byte) error {
	if !slices.Contains(kustomizationNames, path.Base(name)) {
		return refusePlugin(name, data)
	}
	k := &types.Kustomization{}
	if err := k.Unmarshal(data); err != nil {
		return nil // kustomize reads it the same way and says so
	}
	k.FixKustomization()
	if len(k.HelmCharts) > 0 {
		return fmt.Errorf(`%s: helmCharts (%s) needs the helm command, which is never run here: commit what the chart renders to, make it an Application of its own, or pipe "kustomize build --enable-helm" into "grantfirst generate -"`, name, k.HelmCharts[0].Name)
	}
	for _, e := range entries(k) {
		if err := refuseRemote(name, e.field, e.path); err != nil {
			return err
		}
		if err := refusePlugin(name, []byte(e.path)); err != nil {
			return err
		}
	}
	return nil
}

func refuseRemote(name, field, entry string) error {
	if !remote(entry) {
		return nil
	}
	return fmt.Errorf(`%s: %s: %s is remote, and nothing is fetched here: copy it into the repository, or pipe "kustomize build" into "grantfirst generate -"`, name, field, entry)
}

// refusePlugin does the same for the configuration of a builtin plugin, which generators, transformers and validators
// name or hold.
func refusePlugin(name string, data []byte) error {
	if !bytes.Contains(data, []byte("builtin")) {
		return nil
	}
	for _, doc := range bytes.Split(data, []byte("\n---")) {
		var config map[string]any
		if yaml.Unmarshal(doc, &config) != nil || config["apiVersion"] != "builtin" {
			continue
		}
		if err := refusePaths(name, config); err != nil {
			return err
		}
	}
	return nil
}

// refusePaths looks for remote paths in the fields of builtin plugins that hold paths (kustomize api v0.21.2
// internal/builtins).
func refusePaths(name string, config map[string]any) error {
	for field, value := range config {
		var list []any
		switch v := value.(type) {
		case []any:
			list = v
		default:
			list = []any{v}
		}
		for _, v := range list {
			switch v := v.(type) {
			case map[string]any:
				if err := refusePaths(name, v); err != nil {
					return err
				}
			case string:
				switch field {
				case "path", "paths", "env", "envs", "files", "targetFilePath":
					if err := refuseRemote(name, field, source(v)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

type kustomizeEntry struct{ field, path string }

// entries lists all entries of a kustomization that kustomize takes for a path.
func entries(k *types.Kustomization) []kustomizeEntry {
	var list []kustomizeEntry
	add := func(field string, paths ...string) {
		for _, p := range paths {
			list = append(list, kustomizeEntry{field, p})
		}
	}
	add("resources", k.Resources...)
	add("components", k.Components...)
	add("crds", k.Crds...)
	add("configurations", k.Configurations...)
	add("generators", k.Generators...)
	add("transformers", k.Transformers...)
	add("validators", k.Validators...)
	add("openapi", k.OpenAPI["path"])
	//lint:ignore SA1019 kustomize still reads it
	for _, p := range k.PatchesStrategicMerge {
		add("patchesStrategicMerge", string(p))
	}
	//lint:ignore SA1019 kustomize still reads it
	for _, p := range k.PatchesJson6902 {
		add("patchesJson6902", p.Path)
	}
	for _, p := range k.Patches {
		add("patches", p.Path)
	}
	for _, r := range k.Replacements {
		add("replacements", r.Path)
	}
	generator := func(field string, sources types.KvPairSources) {
		add(field, sources.EnvSources...)
		for _, s := range sources.FileSources {
			add(field, source(s))
		}
	}
	for _, g := range k.ConfigMapGenerator {
		generator("configMapGenerator", g.KvPairSources)
	}
	for _, g := range k.SecretGenerator {
		generator("secretGenerator", g.KvPairSources)
	}
	return list
}

// source gives the path of a generator's file entry, [key=]path.
func source(entry string) string {
	if _, file, ok := strings.Cut(entry, "="); ok {
		return file
	}
	return entry
}

var gitEntry = regexp.MustCompile(`(?is)^(git::)?((ssh|https?|file)://|github\.com[:/]|[a-z][a-z0-9-]*@.*[:/])`)

// remote tells whether kustomize would fetch an entry, over HTTP or by git (kustomize api v0.21.2
// internal/git/repospec.go). Where in doubt it says yes.
func remote(entry string) bool {
	u, err := url.Parse(entry)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") || gitEntry.MatchString(entry)
}
