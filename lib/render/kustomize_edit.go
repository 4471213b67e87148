package render

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/pkg/util"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// edit applies the kustomize parameters to the kustomization of dir, in memory. Argo CD runs "kustomize edit" for them
// (v2.14 util/kustomize/kustomize.go), so they change the kustomization itself and do not lie on top of it: a prefix
// replaces its prefix, and an image override is applied where its own would be.
func (f *kustomizeFiles) edit(dir string, o *Options) error {
	if o.NamePrefix == "" && o.NameSuffix == "" && o.OwnNamespace == "" &&
		len(o.Images)+len(o.Replicas)+len(o.CommonLabels)+len(o.CommonAnnotations)+len(o.Patches)+len(o.Components) == 0 {
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
	if o.OwnNamespace != "" {
		k.Namespace = o.OwnNamespace
	}
	if err := setImages(k, o); err != nil {
		return err
	}
	if err := setReplicas(k, o); err != nil {
		return err
	}
	if err := addLabels(k, o); err != nil {
		return fmt.Errorf("parameter commonLabels: %s: %w", file, err)
	}
	annotations := o.CommonAnnotations
	if o.CommonAnnotationsEnvsubst {
		annotations = o.expanded(annotations)
	}
	if k.CommonAnnotations, err = add(k.CommonAnnotations, annotations, o.ForceCommonAnnotations); err != nil {
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
		if o.IgnoreMissingComponents {
			// Argo CD asks for a file of just this name (v3.2 util/kustomize/kustomize.go).
			_, err := stat(f.repo, path.Join(dir, pattern))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrOutside) {
				continue
			}
			if err != nil {
				return fmt.Errorf("parameter components: %s: %w", pattern, err)
			}
		}
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

// setReplicas is "kustomize edit set replicas" (kustomize v5 commands/edit/set/setreplicas.go).
func setReplicas(k *types.Kustomization, o *Options) error {
	if len(o.Replicas) == 0 {
		return nil
	}
	counts := map[string]int64{}
	for _, r := range o.Replicas {
		count, err := strconv.Atoi(r.Value)
		if err != nil || strings.Contains(r.Name, "=") {
			return fmt.Errorf("parameter replicas: %s=%s: want the name of a workload and a number", r.Name, r.Value)
		}
		counts[r.Name] = int64(count)
	}
	for _, own := range k.Replicas {
		if _, ok := counts[own.Name]; !ok {
			counts[own.Name] = own.Count
		}
	}
	k.Replicas = nil
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		k.Replicas = append(k.Replicas, types.Replica{Name: name, Count: counts[name]})
	}
	return nil
}

// addLabels is "kustomize edit add label" (kustomize v5 commands/edit/add/addmetadata.go).
func addLabels(k *types.Kustomization, o *Options) (err error) {
	if len(o.CommonLabels) == 0 {
		return nil
	}
	labels := o.expanded(o.CommonLabels)
	if !o.LabelWithoutSelector {
		if o.LabelIncludeTemplates {
			return errors.New("labelIncludeTemplates needs labelWithoutSelector: with selectors, templates have the labels anyway")
		}
		//lint:ignore SA1019 it is what "kustomize edit add label" writes
		k.CommonLabels, err = add(k.CommonLabels, labels, o.ForceCommonLabels)
		return err
	}
	// They join the first of the kustomization's own labels that go to the same places.
	at := slices.IndexFunc(k.Labels, func(l types.Label) bool { return !l.IncludeSelectors && l.IncludeTemplates == o.LabelIncludeTemplates })
	if at < 0 {
		at = len(k.Labels)
		k.Labels = append(k.Labels, types.Label{IncludeTemplates: o.LabelIncludeTemplates})
	}
	k.Labels[at].Pairs, err = add(k.Labels[at].Pairs, labels, o.ForceCommonLabels)
	return err
}

// add is "kustomize edit add label" or "… annotation" for one map of the kustomization. Without force it refuses to change
// a value. It takes the quotes off a value that has them at both ends, as the command does.
func add(own, more map[string]string, force bool) (map[string]string, error) {
	if len(more) == 0 {
		return own, nil
	}
	all := map[string]string{}
	maps.Copy(all, own)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		if name == "" {
			return nil, errors.New("a name is empty")
		}
		if _, ok := own[name]; ok && !force {
			return nil, fmt.Errorf("%s is already there: change it in Git, or set the parameter that forces it", name)
		}
		value := more[name]
		if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
			value = value[1 : len(value)-1]
		}
		all[name] = value
	}
	return all, nil
}

// components finds the directories that a pattern relative to dir means, as paths relative to dir. A component that is
// not there is an error.
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
