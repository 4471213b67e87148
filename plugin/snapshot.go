package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/loaded"
)

// Snapshot reads from the cluster what a decision about the Application depends on, for all configured signers, and gives it as a stream
// of YAML documents that Request.Live and Request.Application take. There are no Secrets in it, and of pods and ConfigMaps no more than is
// looked at. What cannot be read is written down as such, since it decides as well. Warnings are for people, one line each.
func (r *Request) Snapshot(ctx context.Context) (stream []byte, warnings []string, err error) {
	c := &call{Request: r, at: -1, onlyReads: true}
	if len(r.Live) > 0 {
		return nil, nil, errors.New("a snapshot is taken of a cluster: give no --live")
	}
	if err := c.readConfig(); err != nil {
		return nil, nil, err
	}
	c.app = c.Getenv(envApp)
	if c.Application != "" {
		if err := c.findApplication(ctx); err != nil {
			return nil, nil, fmt.Errorf("application: %w", err)
		}
		c.app = c.application.instanceName(c.controlPlane())
	}
	c.project = c.Getenv(envProject)
	own, err := c.ownCluster()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, c.deadline(time.Now()))
	defer cancel()
	l := &live{}
	if c.asksForApplication() {
		c.readApplication(ctx, l, own, nil)
		if l.remembered {
			// What is remembered is this pod's alone: a snapshot shows what can be read.
			c.application, l.pastUnknown = nil, "the Application cannot be read"
		}
	}
	from := own
	var nowhere error
	if c.hasDestination() {
		from, nowhere = c.destination(own, c.placement())
	}
	documents := c.documents(ctx, own, from, nowhere)
	documents[0].(*loaded.About).ApplicationUnknown = l.pastUnknown
	var out bytes.Buffer
	for i, d := range documents {
		text, err := yaml.Marshal(d)
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), c.warnings, nil
}

// documents reads what a decision depends on; nowhere says why no cluster is known to read the signers from.
func (c *call) documents(ctx context.Context, own, from *loaded.Cluster, nowhere error) []any {
	about := &loaded.About{APIVersion: loaded.AboutAPIVersion, Kind: loaded.AboutKind}
	signers := make([]*config.Signer, len(c.config.Signers))
	objects := make([]*loaded.Objects, len(signers))
	errs := make([]error, len(signers))
	var overrides *corev1.ConfigMap
	var wait sync.WaitGroup
	for i := range signers {
		signers[i] = &c.config.Signers[i]
		if errs[i] = nowhere; nowhere == nil {
			wait.Go(func() { objects[i], errs[i] = from.Objects(ctx, signers[i]) })
		}
	}
	wait.Go(func() { overrides = c.overridesObject(ctx, own) })
	wait.Go(func() {
		if nowhere != nil {
			return
		}
		var err error
		if about.KubeVersion, about.APIVersions, err = from.Versions(ctx); err != nil {
			c.unreadable(err)
		}
	})
	wait.Wait()
	about.TakenAt = metav1.Time{Time: own.At()}
	if nowhere == nil {
		about.TakenAt = metav1.Time{Time: from.At()}
	}

	documents := []any{about}
	seen := map[string]bool{}
	add := func(kind, namespace, name string, object any) {
		if key := kind + " " + namespace + "/" + name; !seen[key] {
			seen[key] = true
			documents = append(documents, object)
		}
	}
	if a := c.application; a != nil {
		documents = append(documents, a.essential())
	}
	for i, s := range signers {
		if errs[i] != nil {
			c.unreadable(errs[i])
			about.Problems = append(about.Problems, loaded.Unread{SignerName: s.SignerName, Message: errs[i].Error()})
			continue
		}
		o := loaded.Essential(s, objects[i])
		for j := range o.Pods {
			add("Pod", o.Pods[j].Namespace, o.Pods[j].Name, &o.Pods[j])
		}
		for j := range o.ConfigMaps {
			add("ConfigMap", o.ConfigMaps[j].Namespace, o.ConfigMaps[j].Name, &o.ConfigMaps[j])
		}
		for _, r := range o.Resources {
			meta, _ := r["metadata"].(map[string]any)
			add(fmt.Sprint(r["kind"]), fmt.Sprint(meta["namespace"]), fmt.Sprint(meta["name"]), r)
		}
	}
	if overrides != nil {
		add("ConfigMap", overrides.Namespace, overrides.Name, overrides)
	}
	return documents
}

// essential is the Application with what grantfirst reads of it.
func (a *Application) essential() *Application {
	out := *a
	out.Metadata.Annotations = nil
	if options, ok := a.Metadata.Annotations[annotationCompareOptions]; ok {
		out.Metadata.Annotations = map[string]string{annotationCompareOptions: options}
	}
	if out.Spec.SourceHydrator != nil {
		out.Spec.SourceHydrator = map[string]any{}
	}
	return &out
}
