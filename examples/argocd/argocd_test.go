// Package argocd_test proves what the files of this folder promise: that a cluster takes the marker's CRD and Argo CD reads the health
// check, that the component puts the plugin into an installation, and, on a real cluster, that the rights are enough and no more, and that
// nothing that goes wrong with a cluster reaches Argo CD as an error.
package argocd_test

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/hold"
)

const healthKey = "resource.customizations.health.grantfirst.dev_Hold"

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// holdVersion gives the CRD's only version.
func holdVersion(t *testing.T) apiextensionsv1.CustomResourceDefinitionVersion {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	readYAML(t, "hold-crd.yaml", &crd)
	if want := crd.Spec.Names.Plural + "." + crd.Spec.Group; crd.Name != want {
		t.Errorf("the CRD's name is %s, the API server wants %s", crd.Name, want)
	}
	if crd.Spec.Group != hold.Group || len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != "v1alpha1" {
		t.Fatalf("group and version are not %s/v1alpha1", hold.Group)
	}
	return crd.Spec.Versions[0]
}

// holdSchema gives the schema as the API server holds it in memory.
func holdSchema(t *testing.T) *schema.Structural {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	v1 := holdVersion(t).Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1, &internal, nil); err != nil {
		t.Fatal(err)
	}
	s, err := schema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheSchemaOfHoldIsStructural(t *testing.T) {
	if errs := schema.ValidateStructural(nil, holdSchema(t)); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestKubectlShowsApplicationReasonSignerAndAge(t *testing.T) {
	spec := holdSchema(t).Properties["spec"].Properties
	var columns []string
	for _, column := range holdVersion(t).AdditionalPrinterColumns {
		columns = append(columns, column.Name+" "+column.Type)
		if field, ok := strings.CutPrefix(column.JSONPath, ".spec."); ok && spec[field].Type != column.Type {
			t.Errorf("column %s: %s is a %q", column.Name, column.JSONPath, spec[field].Type)
		}
	}
	if want := []string{"Application string", "Waiting For string", "Signer string", "Age date"}; !slices.Equal(columns, want) {
		t.Errorf("columns %q, want %q", columns, want)
	}
}

func TestEveryFieldOfAHoldSaysWhatItMeans(t *testing.T) {
	eachField(holdSchema(t).Properties["spec"], "spec", func(path string, s schema.Structural) {
		if s.Description == "" {
			t.Errorf("%s has no description", path)
		}
	})
}

func eachField(s schema.Structural, path string, visit func(string, schema.Structural)) {
	visit(path, s)
	for name, field := range s.Properties {
		eachField(field, path+"."+name, visit)
	}
	if s.Items != nil {
		eachField(*s.Items, path+"[]", visit)
	}
}

// A field of the marker that the schema lacks is not checked and not explained; one that only the schema has promises what nobody writes.
func TestTheSchemaHasTheFieldsThatTheMarkerHasAndNoOthers(t *testing.T) {
	var inSchema, inMarker []string
	eachField(holdSchema(t).Properties["spec"], "spec", func(path string, s schema.Structural) {
		inSchema = append(inSchema, path+" "+s.Type)
	})
	eachGoField(reflect.TypeFor[hold.HoldSpec](), "spec", func(path, kind string) {
		inMarker = append(inMarker, path+" "+kind)
	})
	slices.Sort(inSchema)
	slices.Sort(inMarker)
	if !slices.Equal(inSchema, inMarker) {
		t.Errorf("schema:\n  %s\nmarker:\n  %s", strings.Join(inSchema, "\n  "), strings.Join(inMarker, "\n  "))
	}
}

func eachGoField(goType reflect.Type, path string, visit func(path, kind string)) {
	switch goType.Kind() {
	case reflect.Struct:
		visit(path, "object")
		for field := range goType.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			eachGoField(field.Type, path+"."+name, visit)
		}
	case reflect.Slice:
		visit(path, "array")
		eachGoField(goType.Elem(), path+"[]", visit)
	case reflect.Map:
		visit(path, "object")
	case reflect.Int64:
		visit(path, "integer")
	default:
		visit(path, goType.Kind().String())
	}
}

func TestHolds(t *testing.T) {
	complete := func() hold.Hold {
		return hold.Hold{
			APIVersion: "grantfirst.dev/v1alpha1",
			Kind:       "Hold",
			Metadata:   hold.Metadata{Name: "grantfirst-0123456789-none", Namespace: "shop"},
			Spec: hold.HoldSpec{
				Application: "web",
				Signer:      "example.com/workload",
				WaitingFor:  "example.com/workload to load the grant for shop/web",
				Digest:      "sha256:" + strings.Repeat("0f", 32),
				Demands: []hold.HoldDemand{{
					SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: "web", KeyType: "ECDSAP256",
					Replicas: []hold.HoldReplica{{Pod: "pod-cert-signer-0", Decision: "notGranted", Reason: "NoGrant"}},
				}},
			},
		}
	}
	tests := map[string]struct {
		change func(*hold.Hold)
		want   string
	}{
		"a complete one is taken":                           {func(*hold.Hold) {}, ""},
		"one without a list of demands is taken":            {func(h *hold.Hold) { h.Spec.Demands = []hold.HoldDemand{} }, ""},
		"one that names no Application is refused":          {func(h *hold.Hold) { h.Spec.Application = "" }, "spec.application"},
		"one that does not say what it awaits is refused":   {func(h *hold.Hold) { h.Spec.WaitingFor = "" }, "spec.waitingFor"},
		"one whose identity is not a sha256 is refused":     {func(h *hold.Hold) { h.Spec.Digest = "sha256:0f" }, "spec.digest"},
		"one whose identity is in upper-case is refused":    {func(h *hold.Hold) { h.Spec.Digest = "sha256:" + strings.Repeat("0F", 32) }, "spec.digest"},
		"a replica whose decision is not known is no error": {func(h *hold.Hold) { h.Spec.Demands[0].Replicas[0].Decision = "" }, ""},
	}
	validator := validate.NewSchemaValidator(holdSchema(t).ToKubeOpenAPI(), nil, "", strfmt.Default)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := complete()
			test.change(&h)
			text, err := yaml.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			var object map[string]any
			if err := yaml.Unmarshal(text, &object); err != nil {
				t.Fatal(err)
			}
			err = errors.Join(validator.Validate(object).Errors...)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v does not name %s", err, test.want)
			}
		})
	}
}

func TestHealthCheck(t *testing.T) {
	var patch struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Data             map[string]string
	}
	readYAML(t, "argocd-cm.yaml", &patch)
	if keys := slices.Collect(maps.Keys(patch.Data)); !slices.Equal(keys, []string{healthKey}) {
		t.Fatalf("the patch sets %v, it should set only %s", keys, healthKey)
	}
	tests := map[string]struct {
		object  map[string]any
		message string
	}{
		"a Hold is Suspended and says what it waits for": {map[string]any{"spec": map[string]any{"waitingFor": "the grant for shop/web"}}, "the grant for shop/web"},
		"a Hold with nothing to say is still Suspended":  {map[string]any{"spec": map[string]any{"waitingFor": ""}}, "waits for a grant"},
		"a Hold without a reason is still Suspended":     {map[string]any{"spec": map[string]any{}}, "waits for a grant"},
		"a Hold without a spec is still Suspended":       {map[string]any{}, "waits for a grant"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status, message := health(t, patch.Data[healthKey], test.object)
			if status != "Suspended" || message != test.message {
				t.Errorf("%s %q, want Suspended %q", status, message, test.message)
			}
		})
	}
}

// health runs a script with what Argo CD gives it: the object, and of Lua's libraries only base, table and package
// (Argo CD v2.14 util/lua/lua.go; its harmless os library is left out here).
func health(t *testing.T, script string, object map[string]any) (status, message string) {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	l.SetGlobal("obj", table(l, object))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	result, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns a %s, Argo CD wants a table", l.Get(-1).Type())
	}
	return result.RawGetString("status").String(), result.RawGetString("message").String()
}

func table(l *lua.LState, object map[string]any) *lua.LTable {
	result := l.NewTable()
	for key, value := range object {
		switch value := value.(type) {
		case map[string]any:
			result.RawSetString(key, table(l, value))
		case string:
			result.RawSetString(key, lua.LString(value))
		}
	}
	return result
}

// component builds an installation that names the component, as kustomize does. files are those of the installation.
func component(t *testing.T, install map[string]string) resmap.ResMap {
	t.Helper()
	files := filesys.MakeFsInMemory()
	write := func(name, text string) {
		if err := files.WriteFile(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	shipped, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range shipped {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write("/grantfirst/"+name, string(text))
	}
	for name, text := range install {
		write("/install/"+name, text)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/install")
	if err != nil {
		t.Fatal(err)
	}
	return resources
}

// only is the one resource of that kind and name, the hash at the end of a ConfigMap's aside.
func only(t *testing.T, resources resmap.ResMap, kind, name string) *resource.Resource {
	t.Helper()
	var found []*resource.Resource
	for _, r := range resources.Resources() {
		if r.GetKind() == kind && (r.GetName() == name || kind == "ConfigMap" && strings.HasPrefix(r.GetName(), name+"-")) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects %s %s, want one", len(found), kind, name)
	}
	return found[0]
}

func into(t *testing.T, r *resource.Resource, object any) {
	t.Helper()
	text, err := r.AsYAML()
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatalf("%s %s: %v", r.GetKind(), r.GetName(), err)
	}
}

func TestTheComponentAddsTheHealthCheckToAnArgocdCm(t *testing.T) {
	for name, metadata := range map[string]string{
		"that names no namespace": "{name: argocd-cm}",
		"that names a namespace":  "{name: argocd-cm, namespace: argocd}",
	} {
		t.Run(name, func(t *testing.T) {
			resources := component(t, map[string]string{
				"install.yaml":       "apiVersion: v1\nkind: ConfigMap\nmetadata: " + metadata + "\ndata: {url: https://argocd.example}\n",
				"kustomization.yaml": "namespace: argocd\nresources: [install.yaml]\ncomponents: [../grantfirst]\n",
			})
			if data := only(t, resources, "ConfigMap", "argocd-cm").GetDataMap(); data["url"] != "https://argocd.example" || !strings.Contains(data[healthKey], "Suspended") {
				t.Errorf("data of argocd-cm: %v", data)
			}
		})
	}
}

// What naming the component makes of Argo CD's own manifests, in any namespace, with the image and the configuration that the admin names.
func TestTheComponentPutsThePluginIntoTheOfficialInstallation(t *testing.T) {
	official, err := os.ReadFile("../../../shared/corpus/argo-cd-install.yaml")
	if err != nil {
		t.Skip("needs Argo CD's install.yaml in the corpus beside the project")
	}
	var before appsv1.Deployment
	into(t, only(t, component(t, map[string]string{"install.yaml": string(official), "kustomization.yaml": "resources: [install.yaml]\n"}), "Deployment", repoServer), &before)
	for name, test := range map[string]struct{ namespace, kustomization string }{
		"in the namespace of the kustomization": {"gitops", "namespace: gitops\n"},
		"in that of kubectl apply -n":           {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			resources := component(t, map[string]string{
				"install.yaml": string(official),
				"config.yaml":  "mine",
				"kustomization.yaml": test.kustomization + "resources: [install.yaml]\ncomponents: [../grantfirst]\n" +
					"configMapGenerator: [{name: grantfirst-config, files: [config.yaml]}]\n" +
					"images: [{name: grantfirst, newName: registry.example/grantfirst, newTag: v1}]\n",
			})
			for _, want := range []struct{ kind, name string }{
				{"CustomResourceDefinition", "holds.grantfirst.dev"}, {"Role", "grantfirst"}, {"RoleBinding", "grantfirst"}, {"ConfigMap", "grantfirst-config"},
			} {
				r := only(t, resources, want.kind, want.name)
				if r.GetNamespace() != test.namespace && want.kind != "CustomResourceDefinition" {
					t.Errorf("%s %s is in namespace %q, want %q", want.kind, want.name, r.GetNamespace(), test.namespace)
				}
			}
			configuration := only(t, resources, "ConfigMap", "grantfirst-config")
			if data := configuration.GetDataMap(); !maps.Equal(data, map[string]string{"config.yaml": "mine"}) {
				t.Errorf("configuration %v, want the admin's", data)
			}

			var binding rbacv1.RoleBinding
			into(t, only(t, resources, "RoleBinding", "grantfirst"), &binding)
			if len(binding.Subjects) != 1 || binding.Subjects[0].Name != "argocd-repo-server" || binding.Subjects[0].Namespace != test.namespace {
				t.Errorf("subjects %+v: want argocd-repo-server of namespace %q (an empty one is the binding's own)", binding.Subjects, test.namespace)
			}

			// The watcher's rights that are not of a namespace have its ServiceAccount by its namespace.
			watcher := only(t, resources, "ServiceAccount", "grantfirst-watch").GetNamespace()
			var clusterwide rbacv1.ClusterRoleBinding
			into(t, only(t, resources, "ClusterRoleBinding", "grantfirst-watch-holds"), &clusterwide)
			if want := cmp.Or(test.namespace, "argocd"); watcher != want || clusterwide.Subjects[0].Namespace != want {
				t.Errorf("the watcher is in namespace %q, and %q has its rights on Holds; want %q", watcher, clusterwide.Subjects[0].Namespace, want)
			}

			var patched appsv1.Deployment
			into(t, only(t, resources, "Deployment", repoServer), &patched)
			checkSidecar(t, &patched.Spec.Template, &before.Spec.Template, configuration.GetName())
		})
	}
}

// checkSidecar: one container more, which has all that it mounts, and nothing of Argo CD's own changed.
func checkSidecar(t *testing.T, patched, before *corev1.PodTemplateSpec, configuration string) {
	t.Helper()
	names := func(containers []corev1.Container) (names []string) {
		for _, c := range containers {
			names = append(names, c.Name)
		}
		return names
	}
	at := slices.IndexFunc(patched.Spec.Containers, func(c corev1.Container) bool { return c.Name == "grantfirst" })
	if at < 0 || len(patched.Spec.Containers) != len(before.Spec.Containers)+1 {
		t.Fatalf("containers %v", names(patched.Spec.Containers))
	}
	sidecar := patched.Spec.Containers[at]
	if rest := slices.Delete(slices.Clone(patched.Spec.Containers), at, at+1); !reflect.DeepEqual(rest, before.Spec.Containers) {
		t.Errorf("Argo CD's containers changed: %v", names(rest))
	}
	if !reflect.DeepEqual(patched.Spec.InitContainers, before.Spec.InitContainers) || patched.Spec.ServiceAccountName != before.Spec.ServiceAccountName {
		t.Error("Argo CD's init containers or ServiceAccount changed")
	}
	if sidecar.Image != "registry.example/grantfirst:v1" || !slices.Equal(sidecar.Command, []string{"/var/run/argocd/argocd-cmp-server"}) {
		t.Errorf("image %q, command %q", sidecar.Image, sidecar.Command)
	}
	mounts := map[string]corev1.Volume{}
	for _, m := range sidecar.VolumeMounts {
		i := slices.IndexFunc(patched.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("mount %s has no volume", m.Name)
			continue
		}
		mounts[m.MountPath] = patched.Spec.Volumes[i]
	}
	// Where Argo CD's init container puts its program, and where repo-server looks for the sockets of plugins.
	for _, shared := range []struct {
		of   corev1.Container
		path string
	}{{before.Spec.InitContainers[0], "/var/run/argocd"}, {before.Spec.Containers[0], "/home/argocd/cmp-server/plugins"}} {
		i := slices.IndexFunc(shared.of.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == shared.path })
		if i < 0 || shared.of.VolumeMounts[i].Name != mounts[shared.path].Name {
			t.Errorf("%s is volume %q, and that of container %s is another", shared.path, mounts[shared.path].Name, shared.of.Name)
		}
	}
	isNew := func(name string) bool {
		return !slices.ContainsFunc(before.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	}
	if tmp := mounts["/tmp"]; tmp.EmptyDir == nil || !isNew(tmp.Name) {
		t.Errorf("/tmp is %+v, want an emptyDir of the sidecar's own", tmp)
	}
	if c := mounts["/etc/grantfirst"].ConfigMap; c == nil || c.Name != configuration {
		t.Errorf("/etc/grantfirst is %+v, want ConfigMap %s", c, configuration)
	}
	const credentials = "/var/run/secrets/kubernetes.io/serviceaccount"
	token := mounts[credentials]
	if automount := patched.Spec.AutomountServiceAccountToken; automount == nil || *automount || token.Projected == nil || !isNew(token.Name) {
		t.Fatalf("automountServiceAccountToken is not false, or %s is %+v, want a projected volume of the sidecar's own", credentials, token)
	}
	for _, c := range slices.Concat(patched.Spec.InitContainers, patched.Spec.Containers) {
		if c.Name != sidecar.Name && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == token.Name }) {
			t.Errorf("container %s has the token as well", c.Name)
		}
	}
}
