package render

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/pkg/util"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// edit applies the kustomize parameters to the kustomization of dir, in memory. Argo CD runs "kustomize edit" for them
// (v2.14 util/kustomize/kustomize.go), so they change the kustomization itself and do not lie on top of it: a prefix
// replaces its prefix, and an image override is applied where its own would be.
func (f *kustomizeFiles) edit(dir string, o *Options) error {
	if o.NamePrefix == "" && o.NameSuffix == "" && len(o.Images)+len(o.CommonLabels)+len(o.CommonAnnotations)+len(o.Patches)+len(o.Components) == 0 {
		return nil
	}
	file, err := kustomizationFile(f.repo, dir)
	if err != nil {
		return err
	}
	if f.editedPath, err = resolve(f.repo, file); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	k, err := readKustomization(f.repo, dir)
	if err != nil {
		return err
	}
	if o.NamePrefix != "" {
		k.NamePrefix = o.NamePrefix
	}
	if o.NameSuffix != "" {
		k.NameSuffix = o.NameSuffix
	}
	if err := setImages(k, o); err != nil {
		return err
	}
	labels := maps.Clone(o.CommonLabels)
	for name, value := range labels {
		labels[name] = o.expand(value)
	}
	//lint:ignore SA1019 it is what "kustomize edit add label" writes
	if k.CommonLabels, err = add(k.CommonLabels, labels); err != nil {
		return fmt.Errorf("parameter commonLabels: %s: %w", file, err)
	}
	if k.CommonAnnotations, err = add(k.CommonAnnotations, o.CommonAnnotations); err != nil {
		return fmt.Errorf("parameter commonAnnotations: %s: %w", file, err)
	}
	for i, text := range o.Patches {
		var p types.Patch
		if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
			return fmt.Errorf("parameter patches: entry %d: want an object {patch or path, target, options}: %w", i+1, err)
		}
		k.Patches = append(k.Patches, p)
	}
	for _, pattern := range o.Components {
		found, err := components(f.repo, dir, pattern)
		if err != nil {
			return fmt.Errorf("parameter components: %s: %w", pattern, err)
		}
		for _, c := range found {
			if !slices.Contains(k.Components, c) {
				k.Components = append(k.Components, c)
			}
		}
	}
	f.edited, err = yaml.Marshal(k)
	return err
}

// keep, in an image override, keeps what the kustomization has.
const keep = "*"

// setImages is "kustomize edit set image" (kustomize v5 commands/edit/set/setimage.go).
func setImages(k *types.Kustomization, o *Options) error {
	if len(o.Images) == 0 {
		return nil
	}
	images := map[string]types.Image{}
	for _, text := range o.Images {
		image, err := parseImage(o.expand(text))
		if err != nil {
			return fmt.Errorf("parameter images: %w", err)
		}
		images[image.Name] = image
	}
	kept := func(value, own string) string {
		if value == keep {
			return own
		}
		return value
	}
	for _, own := range k.Images {
		image, ok := images[own.Name]
		if !ok {
			images[own.Name] = own
			continue
		}
		images[own.Name] = types.Image{
			Name:    own.Name,
			NewName: kept(image.NewName, own.NewName),
			NewTag:  kept(image.NewTag, own.NewTag),
			Digest:  kept(image.Digest, own.Digest),
		}
	}
	k.Images = nil
	for _, name := range slices.Sorted(maps.Keys(images)) {
		image := images[name]
		image.NewName, image.NewTag, image.Digest = kept(image.NewName, ""), kept(image.NewTag, ""), kept(image.Digest, "")
		k.Images = append(k.Images, image)
	}
	return nil
}

// parseImage reads name[=newName][:tag][@digest], of which at least one part must be there.
func parseImage(text string) (types.Image, error) {
	key, value, renamed := strings.Cut(text, "=")
	if renamed && key != "" {
		name, tag, digest := util.SplitImageName(value)
		return types.Image{Name: key, NewName: name, NewTag: tag, Digest: digest}, nil
	}
	name, tag, digest := util.SplitImageName(text)
	if renamed || name == "" || name == text {
		return types.Image{}, fmt.Errorf("%q: want name=newName, name:tag or name@digest", text)
	}
	return types.Image{Name: name, NewTag: tag, Digest: digest}, nil
}

// add is "kustomize edit add label" or "… annotation" without --force, which refuses to change a value.
func add(own, more map[string]string) (map[string]string, error) {
	if len(more) == 0 {
		return own, nil
	}
	all := map[string]string{}
	maps.Copy(all, own)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		if _, ok := own[name]; ok {
			return nil, fmt.Errorf("%s is already there: change it in Git, or use a patch", name)
		}
		all[name] = more[name]
	}
	return all, nil
}

// components finds the directories that a pattern relative to dir means, as paths relative to dir. A component that is
// not there is an error: kustomize would leave it out with a line in the log.
func components(repo fs.FS, dir, pattern string) ([]string, error) {
	if remote(pattern) {
		return nil, fmt.Errorf("remote, and nothing is fetched here: copy it into the repository")
	}
	full := path.Join(dir, pattern)
	if path.IsAbs(pattern) || !fs.ValidPath(full) {
		return nil, ErrOutside
	}
	found, err := fs.Glob(repo, full)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %w", full, fs.ErrNotExist)
	}
	for i, name := range found {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return nil, err
		}
		found[i] = filepath.ToSlash(rel)
	}
	return found, nil
}
