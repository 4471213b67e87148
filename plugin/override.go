package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/loaded"
)

// ErrNoOverride says that there is none to remove.
var ErrNoOverride = errors.New("no override is there")

// Override writes one into the cluster, which ends after a time by the API server's clock; those that have run out by then are taken out.
// The name is that of the Application, NAMESPACE/NAME outside Argo CD's namespace. It gives what was written, with its end.
func (r *Request) Override(ctx context.Context, application string, o Override, lasts time.Duration) (*Override, error) {
	if o.Reason == "" || lasts <= 0 {
		return nil, errors.New("an override needs a reason and a time after which it ends")
	}
	err := r.changeOverrides(ctx, application, func(all []Override, now time.Time) ([]Override, error) {
		o.Until = now.Add(lasts).UTC().Format(time.RFC3339)
		all = slices.DeleteFunc(all, func(have Override) bool {
			until, err := time.Parse(time.RFC3339, have.Until)
			return err != nil || !now.Before(until)
		})
		return append(all, o), nil
	})
	return &o, err
}

// RemoveOverrides takes all overrides of the Application out of the cluster; ErrNoOverride if there are none.
func (r *Request) RemoveOverrides(ctx context.Context, application string) error {
	return r.changeOverrides(ctx, application, func(all []Override, _ time.Time) ([]Override, error) {
		if len(all) == 0 {
			return nil, ErrNoOverride
		}
		return nil, nil
	})
}

// Qualified gives the namespace and the name of an Application as people write it: NAME where it is in Argo CD's namespace, as the
// configuration has that, or NAMESPACE/NAME.
func (r *Request) Qualified(application string) (namespace, name string, err error) {
	c := &call{Request: r, at: -1}
	if err := c.readConfig(); err != nil {
		return "", "", err
	}
	namespace, name = c.namespaced(application)
	return namespace, name, nil
}

// changeOverrides changes those of one Application, and nothing else of the ConfigMap. Somebody else's change in between begins it anew.
func (r *Request) changeOverrides(ctx context.Context, application string, change func(all []Override, now time.Time) ([]Override, error)) error {
	c := &call{Request: r, at: -1}
	if err := c.readConfig(); err != nil {
		return err
	}
	namespace, name := c.namespaced(application)
	a := &Application{}
	a.Metadata.Namespace, a.Metadata.Name = namespace, name
	c.app = a.instanceName(c.controlPlane())
	ctx, cancel := context.WithDeadline(ctx, c.deadline(time.Now()))
	defer cancel()
	own, err := c.ownCluster()
	if err != nil {
		return err
	}
	// That it exists is asked for first: a misspelt name would let nothing go, and its time is the API server's.
	if _, err := getApplication(ctx, own, namespace, name); err != nil {
		return err
	}
	settings, err := c.ownSettings()
	if err != nil {
		return err
	}
	settings.ContentType = runtime.ContentTypeJSON
	client, err := typedcorev1.NewForConfig(settings)
	if err != nil {
		return err
	}
	for {
		err := writeOverrides(ctx, client.ConfigMaps(c.controlPlane()), c.app, own, change)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

func writeOverrides(ctx context.Context, configMaps typedcorev1.ConfigMapInterface, app string, own *loaded.Cluster, change func([]Override, time.Time) ([]Override, error)) error {
	cm, err := configMaps.Get(ctx, OverridesName, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if isNew {
		cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: OverridesName}}
	} else if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", OverridesName, err)
	}
	var all []Override
	if err := yaml.UnmarshalStrict([]byte(cm.Data[app]), &all); err != nil {
		return fmt.Errorf("ConfigMap %s, key %s: %w: correct or remove it", OverridesName, app, err)
	}
	if all, err = change(all, own.At()); err != nil {
		return err
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	delete(cm.Data, app)
	if len(all) > 0 {
		text, err := yaml.Marshal(all)
		if err != nil {
			return err
		}
		cm.Data[app] = string(text)
	}
	if isNew {
		_, err = configMaps.Create(ctx, cm, metav1.CreateOptions{FieldManager: "grantfirst"})
	} else {
		_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: "grantfirst"})
	}
	return err
}
