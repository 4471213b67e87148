package applications

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	sigsyaml "sigs.k8s.io/yaml"
)

// listing is what is in a tree, found out once.
type listing struct {
	once sync.Once
	// files are all but folders, as git ls-files gives them, with submodules; folders are those that git directory generators see.
	files, folders []string
	// closed are folders that cannot be looked into, with why: submodules.
	closed map[string]error
	err    error
}

func (r *Repository) listing() *listing {
	r.list.once.Do(func() {
		l := &r.list
		l.closed = map[string]error{}
		var hidden string
		l.err = fs.WalkDir(r.Tree, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				if name == "." {
					return err
				}
				// The folder was given before it was found to be closed.
				l.closed[name] = err
				l.files = append(l.files, name)
				return fs.SkipDir
			}
			if !entry.IsDir() {
				l.files = append(l.files, name)
				return nil
			}
			if name == "." {
				return nil
			}
			if hidden != "" && strings.HasPrefix(name, hidden+"/") {
				return nil
			}
			if strings.HasPrefix(entry.Name(), ".") {
				hidden = name
				if name == ".git" {
					return fs.SkipDir
				}
				return nil
			}
			l.folders = append(l.folders, name)
			return nil
		})
		slices.Sort(l.files)
	})
	return &r.list
}

// commitID is one in full or shortened.
var commitID = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// here reports whether a revision will be this tree.
func (r *Repository) here(revision string) bool {
	if revision == "" || revision == "HEAD" {
		return true
	}
	if r.Branch != nil {
		return r.Branch(revision)
	}
	return !commitID.MatchString(revision)
}

// fromGit is generators/git.go.
func (e *expansion) fromGit(g *gitGenerator) ([]params, error) {
	if e.Own != nil && !e.Own(g.RepoURL) {
		return nil, fmt.Errorf("it reads repository %s, which is not this one", g.RepoURL)
	}
	if !e.here(g.Revision) {
		return nil, fmt.Errorf("it reads revision %s, which this change does not become", g.Revision)
	}
	l := e.listing()
	if l.err != nil {
		return nil, l.err
	}
	switch {
	case len(g.Directories) > 0:
		return e.fromDirectories(g, l)
	case len(g.Files) > 0:
		return e.fromFiles(g, l)
	}
	return nil, errors.New("it has neither directories nor files")
}

func (e *expansion) fromDirectories(g *gitGenerator, l *listing) ([]params, error) {
	for _, d := range g.Directories {
		// Argo CD goes on without such a pattern, and only its log says so.
		if _, err := path.Match(d.Path, ""); err != nil {
			return nil, fmt.Errorf("directories: path %q: %w", d.Path, err)
		}
		for _, name := range slices.Sorted(maps.Keys(l.closed)) {
			if !d.Exclude && below(d.Path, name) {
				return nil, fmt.Errorf("directories: path %q may match what is in %w", d.Path, l.closed[name])
			}
		}
	}
	if err := e.spend(len(l.folders) * len(g.Directories)); err != nil {
		return nil, err
	}
	var sets []params
	for _, folder := range l.folders {
		in, out := false, false
		for _, d := range g.Directories {
			if match, _ := path.Match(d.Path, folder); match {
				in, out = in || !d.Exclude, out || d.Exclude
			}
		}
		if !in || out {
			continue
		}
		p := params{}
		e.setPath(p, g.PathParamPrefix, folder, "")
		if err := e.withValues(p, g.Values); err != nil {
			return nil, fmt.Errorf("directory %s: %w", folder, err)
		}
		if sets = append(sets, p); len(sets) > maxApplications {
			return nil, errTooMany
		}
	}
	return sets, nil
}

// below reports whether a pattern of path.Match can match something in a folder.
func below(pattern, folder string) bool {
	parts, n := strings.Split(pattern, "/"), strings.Count(folder, "/")+1
	if len(parts) <= n {
		return false
	}
	match, _ := path.Match(strings.Join(parts[:n], "/"), folder)
	return match
}

func (e *expansion) fromFiles(g *gitGenerator, l *listing) ([]params, error) {
	chosen := map[string]bool{}
	for _, exclude := range []bool{false, true} {
		for _, item := range g.Files {
			if item.Exclude != exclude {
				continue
			}
			spec, err := newPathspec(item.Path)
			if err != nil {
				return nil, fmt.Errorf("files: path %q: %w", item.Path, err)
			}
			if err := e.spend(len(l.files)); err != nil {
				return nil, err
			}
			for _, name := range l.files {
				if spec.matches(name) {
					chosen[name] = !exclude
				}
			}
		}
	}
	var sets []params
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		if !chosen[name] {
			continue
		}
		text, err := fs.ReadFile(e.Tree, name)
		if err != nil {
			return nil, err
		}
		if err := e.spend(costOfParsing * len(text)); err != nil {
			return nil, err
		}
		// One object, or else a list of them. An empty file is an empty object.
		var one params
		objects := []params{}
		if sigsyaml.Unmarshal(text, &one) == nil {
			objects = append(objects, one)
		} else if err := sigsyaml.Unmarshal(text, &objects); err != nil {
			return nil, fmt.Errorf("%s: neither an object nor a list of objects: %w", name, err)
		}
		for _, object := range objects {
			p := params{}
			if e.goTemplate {
				maps.Copy(p, object)
			} else {
				for k, v := range flat(object) {
					p[k] = fmt.Sprint(v)
				}
			}
			e.setPath(p, g.PathParamPrefix, path.Dir(name), path.Base(name))
			if err := e.withValues(p, g.Values); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if sets = append(sets, p); len(sets) > maxApplications {
				return nil, errTooMany
			}
		}
	}
	return sets, nil
}

// setPath adds the parameters of a path: the folder, and the file where there is one.
func (e *expansion) setPath(p params, prefix, folder, file string) {
	if e.goTemplate {
		at := params{
			"path": folder, "basename": path.Base(folder), "basenameNormalized": normalized(path.Base(folder)),
			"segments": strings.Split(folder, "/"),
		}
		if file != "" {
			at["filename"], at["filenameNormalized"] = file, normalized(file)
		}
		if prefix == "" {
			p["path"] = at
		} else {
			p[prefix] = params{"path": at}
		}
		return
	}
	name := "path"
	if prefix != "" {
		name = prefix + ".path"
	}
	p[name], p[name+".basename"], p[name+".basenameNormalized"] = folder, path.Base(folder), normalized(path.Base(folder))
	if file != "" {
		p[name+".filename"], p[name+".filenameNormalized"] = file, normalized(file)
	}
	for i, segment := range strings.Split(folder, "/") {
		if segment != "" {
			p[name+"["+strconv.Itoa(i)+"]"] = segment
		}
	}
}
