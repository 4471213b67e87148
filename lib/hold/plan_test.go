package hold

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

func object1(apiVersion, kind, namespace, name string) string {
	s := "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata:\n  name: " + name + "\n"
	if namespace != "" {
		s += "  namespace: " + namespace + "\n"
	}
	return s
}

func annotated(object, key, value string) string {
	return strings.Replace(object, "metadata:\n", "metadata:\n  annotations:\n    "+key+": \""+value+"\"\n", 1)
}

// refused is a plan whose only replica refuses the Deployment that is added to the objects.
func refused(t *testing.T, objects ...string) *Plan {
	t.Helper()
	return mustMake(t, input(t, docs(append([]string{deployment}, objects...)...), replicas(t, grantsNobody)))
}

func TestWhatGoesOutAsWhat(t *testing.T) {
	binding := func(kind, namespace, name, roleKind, subjectNamespace string) string {
		return object1("rbac.authorization.k8s.io/v1", kind, namespace, name) +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: " + roleKind + ", name: r}\n" +
			"subjects: [{kind: ServiceAccount, name: s, namespace: " + subjectNamespace + "}]\n"
	}
	role := object1("rbac.authorization.k8s.io/v1", "Role", "", "r")
	clusterRole := object1("rbac.authorization.k8s.io/v1", "ClusterRole", "", "r")
	tests := map[string]struct {
		objects []string
		want    []string
	}{
		"a Service waits":                                           {[]string{service}, []string{"Service/web: hold"}},
		"a policy object goes out":                                  {[]string{policyObjectWeb}, []string{"ConfigMap/policy: emit"}},
		"everything in the signer's namespace goes out":             {[]string{object1("apps/v1", "Deployment", "signer", "d")}, []string{"Deployment/d: emit"}},
		"a Namespace goes out":                                      {[]string{object1("v1", "Namespace", "", "team")}, []string{"Namespace/team: emit"}},
		"a CustomResourceDefinition goes out":                       {[]string{object1("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "c")}, []string{"CustomResourceDefinition/c: emit"}},
		"a CRD that Helm calls a hook goes out":                     {[]string{annotated(object1("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "c"), "helm.sh/hook", "crd-install")}, []string{"CustomResourceDefinition/c: emit"}},
		"a cluster-wide object cannot claim the signer's namespace": {[]string{object1("rbac.authorization.k8s.io/v1", "ClusterRole", "signer", "c")}, []string{"ClusterRole/c: hold"}},
		"the signer's ClusterRole and its binding go out":           {[]string{binding("ClusterRoleBinding", "", "b", "ClusterRole", "signer"), clusterRole}, []string{"ClusterRoleBinding/b: emit", "ClusterRole/r: emit"}},
		"the signer's Role elsewhere and its binding go out":        {[]string{role, binding("RoleBinding", "shop", "b", "Role", "signer")}, []string{"Role/r: emit", "RoleBinding/b: emit"}},
		"a ClusterRole of others waits":                             {[]string{binding("ClusterRoleBinding", "", "b", "ClusterRole", "shop"), clusterRole}, []string{"ClusterRoleBinding/b: hold", "ClusterRole/r: hold"}},
		"a Role of the same name in another namespace waits":        {[]string{strings.Replace(role, "  name: r\n", "  name: r\n  namespace: other\n", 1), binding("RoleBinding", "shop", "b", "Role", "signer")}, []string{"Role/r: hold", "RoleBinding/b: emit"}},
		"hooks are left out":                                        {[]string{annotated(object1("batch/v1", "Job", "shop", "j"), annotationHook, "PreSync")}, []string{"Job/j: omit"}},
		"Helm hooks are left out":                                   {[]string{annotated(object1("batch/v1", "Job", "shop", "j"), annotationHelmHook, "post-install")}, []string{"Job/j: omit"}},
		"a Helm test is left out":                                   {[]string{annotated(object1("v1", "Pod", "shop", "j"), annotationHelmHook, "test")}, []string{"Pod/j: omit"}},
		"a hook that Argo CD does not know is left out":             {[]string{annotated(object1("batch/v1", "Job", "shop", "j"), annotationHook, "skip")}, []string{"Job/j: omit"}},
		"a hook in the signer's namespace is left out, too":         {[]string{annotated(object1("batch/v1", "Job", "signer", "j"), annotationHook, "Sync")}, []string{"Job/j: omit"}},
		"PreDelete and PostDelete hooks go out as they are":         {[]string{annotated(object1("batch/v1", "Job", "shop", "a"), annotationHook, "PreDelete"), annotated(object1("batch/v1", "Job", "shop", "b"), annotationHelmHook, "post-delete")}, []string{"Job/a: emit", "Job/b: emit"}},
		"what its author skips stays as it is":                      {[]string{annotated(object1("v1", "Secret", "shop", "s"), annotationHook, "Skip")}, []string{"Secret/s: emit"}},
		"an object without a namespace is the destination's":        {[]string{object1("v1", "Service", "", "s")}, []string{"Service/s: hold"}},
		"an object with only a generateName is named by it":         {[]string{"apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: run-, namespace: shop}\n"}, []string{"Job/run-: hold"}},
		"items of a list are each what they are":                    {[]string{"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: team}}\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n"}, []string{"Namespace/team: emit", "Secret/s: hold"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := append([]string{"Deployment/web: hold"}, test.want...)
			expectActions(t, refused(t, test.objects...), append(want, "Hold/*: marker")...)
		})
	}
}

func TestAlwaysEmitSelectsObjects(t *testing.T) {
	core, batch := "", "batch"
	labelled := strings.Replace(object1("v1", "Secret", "shop", "s"), "metadata:\n", "metadata:\n  labels: {early: \"yes\"}\n", 1)
	tests := map[string]struct {
		selects config.Select
		emitted bool
	}{
		"by kind":                  {config.Select{Kind: "Secret"}, true},
		"by group and kind":        {config.Select{Group: &core, Kind: "Secret"}, true},
		"not by another group":     {config.Select{Group: &batch, Kind: "Secret"}, false},
		"by namespace":             {config.Select{Namespace: "shop", Kind: "Secret"}, true},
		"not by another namespace": {config.Select{Namespace: "other", Kind: "Secret"}, false},
		"by label":                 {config.Select{LabelSelector: "early=yes"}, true},
		"not by another label":     {config.Select{LabelSelector: "early=no"}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t, docs(deployment, labelled), replicas(t, grantsNobody))
			in.Config.Hold.AlwaysEmit = []config.Select{test.selects}
			want := map[bool]string{true: "Secret/s: emit", false: "Secret/s: hold"}[test.emitted]
			expectActions(t, mustMake(t, in), "Deployment/web: hold", want, "Hold/*: marker")
		})
	}
}

func TestAHeldStreamChangesOnlyWhatIsHeld(t *testing.T) {
	hook := annotated(object1("batch/v1", "Job", "shop", "j"), annotationHook, "PreSync")
	mixed := annotated(object1("batch/v1", "Job", "shop", "m"), annotationHelmHook, "pre-install,post-delete")
	p := refused(t, policyObjectWeb, hook, mixed)
	got := mustBytes(t, p)
	if !strings.Contains(got, "---\n"+policyObjectWeb) {
		t.Errorf("the policy object changed:\n%s", got)
	}
	if strings.Contains(got, "name: j\n") {
		t.Errorf("the hook went out:\n%s", got)
	}
	if !strings.Contains(got, `helm.sh/hook: "post-delete"`) {
		t.Errorf("the mixed hook must keep only its deletion part:\n%s", got)
	}
	for _, want := range []string{"# the shop", `argocd.argoproj.io/hook: "Skip"`, AnnotationWaitingFor} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	again := mustBytes(t, mustMake(t, input(t, docs(deployment, policyObjectWeb), replicas(t, grantsWeb))))
	if again != docs(deployment, policyObjectWeb) {
		t.Errorf("after the release not byte for byte:\n%s", again)
	}
}

func TestAppliedIsOnlyWhatWouldBeApplied(t *testing.T) {
	p := refused(t, policyObjectWeb, service, annotated(object1("batch/v1", "Job", "shop", "j"), annotationHook, "PostDelete"))
	got, err := p.Applied()
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimPrefix(string(got), "---\n") != policyObjectWeb {
		t.Errorf("got:\n%s", got)
	}
	if got, err := refused(t, service).Applied(); err != nil || len(got) > 0 {
		t.Errorf("nothing would be applied, got %q, %v", got, err)
	}
}

// Argo CD v2.14 sees no annotation at all where one of them is null, and no version where one is a number.
func TestAHeldObjectHasNoAnnotationThatHidesItsSkip(t *testing.T) {
	for name, annotations := range map[string]string{
		"null in block style": "  annotations:\n    checksum/config:\n    b: c\n",
		"null in flow style":  "  annotations: {checksum/config, b: c}\n",
		"a number":            "  annotations: {checksum/config: 12, b: c}\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := refused(t, strings.Replace(object1("v1", "Secret", "shop", "s"), "metadata:\n", "metadata:\n"+annotations, 1))
			out := parseStream(t, mustBytes(t, p))
			heads, err := out.Documents[1].Heads()
			if err != nil {
				t.Fatal(err)
			}
			if got := heads[0].Annotations; got[annotationHook] != "Skip" || got["b"] != "c" {
				t.Errorf("annotations %v in\n%s", got, out.Documents[1].Raw)
			}
		})
	}
}

func TestMarker(t *testing.T) {
	read := func(t *testing.T, p *Plan) Hold {
		t.Helper()
		var h Hold
		if err := yaml.UnmarshalStrict(p.marker.manifest, &h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	t.Run("it names demand, signer, wanted revision and what each replica has loaded", func(t *testing.T) {
		h := read(t, mustMake(t, input(t, docs(deployment, policyObjectWeb), replicas(t, grantsWeb, grantsNobody))))
		d := h.Spec.Demands[0]
		if h.Kind != "Hold" || h.Metadata.Namespace != "shop" || h.Spec.Application != "web" || h.Spec.Signer != "example.com/workload" ||
			d.Object != "apps/Deployment shop/web" || d.WantedRevision == "" || len(d.Replicas) != 2 || d.Replicas[1].Decision != "notGranted" {
			t.Errorf("marker: %s", mustMake(t, input(t, deployment, replicas(t, grantsNobody))).marker.manifest)
		}
	})
	t.Run("it sits in the highest wave that goes out, not in that of what is held", func(t *testing.T) {
		p := refused(t, annotated(object1("v1", "Namespace", "", "team"), annotationWave, "3"), annotated(service2(), annotationWave, "9"),
			annotated(object1("v1", "Secret", "signer", "s"), annotationWave, "-2"))
		if got := read(t, p).Metadata.Annotations[annotationWave]; got != "3" {
			t.Errorf("wave %q", got)
		}
	})
	t.Run("with only early waves it is early, too", func(t *testing.T) {
		p := refused(t, annotated(object1("v1", "Namespace", "", "team"), annotationWave, "-5"))
		if got := read(t, p).Metadata.Annotations[annotationWave]; got != "-5" {
			t.Errorf("wave %q", got)
		}
	})
	t.Run("its name carries the entry released last", func(t *testing.T) {
		in := input(t, deployment, replicas(t, grantsNobody))
		in.Past = []Entry{entry(t, "r0", service)}
		if p := mustMake(t, in); p.marker.name != markerPrefix("web", "repo//web")+Key("r0", "{}") {
			t.Errorf("name %s", p.marker.name)
		}
	})
	t.Run("its digest stays while the replicas change and the same demands wait", func(t *testing.T) {
		a := read(t, mustMake(t, input(t, deployment, replicas(t, grantsNobody, grantsNobody))))
		b := read(t, mustMake(t, input(t, deployment, replicas(t, grantsWeb, grantsNobody))))
		c := read(t, mustMake(t, input(t, strings.ReplaceAll(deployment, "ED25519", "RSA3072"), replicas(t, grantsNobody))))
		if a.Spec.Digest != b.Spec.Digest || a.Spec.Digest == c.Spec.Digest {
			t.Errorf("digests %s %s %s", a.Spec.Digest, b.Spec.Digest, c.Spec.Digest)
		}
	})
	t.Run("without a destination it goes where the pods would", func(t *testing.T) {
		in := input(t, deployment, replicas(t, grantsNobody))
		in.Namespace = ""
		if h := read(t, mustMake(t, in)); h.Metadata.Namespace != "shop" {
			t.Errorf("namespace %q", h.Metadata.Namespace)
		}
	})
	t.Run("thousands of demands do not make it larger than Kubernetes takes", func(t *testing.T) {
		var all []string
		for i := range 5000 {
			all = append(all, strings.ReplaceAll(deployment, "serviceAccountName: web", "serviceAccountName: web-"+strings.Repeat("x", i%40)+string(rune('a'+i%26))))
		}
		if p := mustMake(t, input(t, docs(all...), replicas(t, grantsNobody))); len(p.marker.manifest) > 100_000 {
			t.Errorf("%d bytes", len(p.marker.manifest))
		}
	})
	t.Run("as a Deployment it is paused, without replicas and says the reason", func(t *testing.T) {
		in := input(t, deployment, replicas(t, grantsNobody))
		in.Marker = config.MarkerDeployment
		p := mustMake(t, in)
		var d struct {
			Metadata Metadata
			Spec     struct {
				Paused   bool
				Replicas *int
			}
		}
		if err := yaml.Unmarshal(p.marker.manifest, &d); err != nil {
			t.Fatal(err)
		}
		if !d.Spec.Paused || d.Spec.Replicas == nil || *d.Spec.Replicas != 0 || d.Metadata.Annotations[AnnotationWaitingFor] == "" {
			t.Errorf("marker:\n%s", p.marker.manifest)
		}
		expectActions(t, p, "Deployment/web: hold", "Deployment/*: marker")
	})
}

func service2() string { return object1("v1", "Service", "shop", "late") }

func tracked(group, version, kind, namespace, name string) Resource {
	return Resource{Group: group, Version: version, Kind: kind, Namespace: namespace, Name: name}
}

func TestKeepers(t *testing.T) {
	gone := object1("v1", "ConfigMap", "", "gone") + "data: {a: \"1\"}\n"
	goneResource := tracked("", "v1", "ConfigMap", "shop", "gone")
	foreign := tracked("", "v1", "ConfigMap", "shop", "foreign")
	statefulSet := tracked("apps", "v1", "StatefulSet", "shop", "db")
	tests := map[string]struct {
		past    []Entry
		marker  string
		tracked []Resource
		change  func(*Input)
		want    []string
		err     string
		text    string
	}{
		"what the released render had and is tracked is kept as it was rendered": {
			past: []Entry{entry(t, "r0", docs(deployment, gone))}, tracked: []Resource{goneResource},
			want: []string{"ConfigMap/gone: keep"}, text: "a: \"1\"",
		},
		"what is no longer tracked is not kept": {past: []Entry{entry(t, "r0", docs(deployment, gone))}},
		"another source's objects are not kept": {
			past: []Entry{entry(t, "r0", deployment)}, tracked: []Resource{foreign}, change: func(in *Input) { in.Sources = 2 },
		},
		"what only a commit during the hold deleted is kept out of the released render": {
			past: []Entry{entry(t, "r2", deployment), entry(t, "r1", deployment), entry(t, "r0", docs(deployment, gone))}, marker: Key("r0", "{}"),
			tracked: []Resource{goneResource}, want: []string{"ConfigMap/gone: keep"}, text: "a: \"1\"",
		},
		"what a commit during the hold added and another deleted is kept": {
			past: []Entry{entry(t, "r1", docs(deployment, gone)), entry(t, "r0", deployment)}, marker: Key("r0", "{}"),
			tracked: []Resource{goneResource}, want: []string{"ConfigMap/gone: keep"},
		},
		"renders before the released one are not searched": {
			past: []Entry{entry(t, "r1", deployment), entry(t, "r0", docs(deployment, gone))}, tracked: []Resource{goneResource},
		},
		"a Namespace is kept, hooks and the marker are not": {
			past:    []Entry{entry(t, "r0", docs(deployment, annotated(object1("batch/v1", "Job", "shop", "j"), annotationHook, "PreSync"), object1("v1", "Namespace", "", "shop")))},
			tracked: []Resource{{Group: "batch", Version: "v1", Kind: "Job", Namespace: "shop", Name: "j", Hook: true}, tracked("", "v1", "Namespace", "", "shop")},
			marker:  Key("r0", "{}"),
			want:    []string{"Namespace/shop: keep"},
		},
		"a keeper has the version that is tracked, not the one rendered then": {
			past: []Entry{entry(t, "r0", docs(deployment, object1("apps/v1beta1", "StatefulSet", "shop", "db")))}, tracked: []Resource{statefulSet},
			want: []string{"StatefulSet/db: keep"}, text: "apiVersion: apps/v1\nkind: StatefulSet",
		},
		"a keeper has no annotation that hides its Skip": {
			past:    []Entry{entry(t, "r0", docs(deployment, strings.Replace(gone, "  name: gone\n", "  name: gone\n  annotations: {a: null, b: 12}\n", 1)))},
			tracked: []Resource{goneResource}, want: []string{"ConfigMap/gone: keep"}, text: "    a: \"\"\n",
		},
		"without the old render a ConfigMap is kept by its name": {
			past: []Entry{unreadable("r0", "shallow clone")}, tracked: []Resource{goneResource}, change: func(in *Input) { in.ServerSideDiff = true },
			want: []string{"ConfigMap/gone: keep"},
		},
		"without the old render other kinds are kept by their name unless ServerSideDiff is on": {
			past: []Entry{unreadable("r0", "shallow clone")}, tracked: []Resource{statefulSet}, want: []string{"StatefulSet/db: keep"},
		},
		"a live hook is never pruned and needs no stub": {
			past: []Entry{unreadable("r0", "shallow clone")}, change: func(in *Input) { in.Sources = 2 },
			tracked: []Resource{{Group: "batch", Version: "v1", Kind: "Job", Namespace: "shop", Name: "j", Hook: true}},
		},
		"with ServerSideDiff their deletion is refused": {
			past: []Entry{unreadable("r0", "shallow clone")}, tracked: []Resource{statefulSet}, change: func(in *Input) { in.ServerSideDiff = true },
			err: "apps/StatefulSet shop/db: deleted while the Application is held",
		},
		"with several sources and no old render nothing can be told": {
			past: []Entry{unreadable("r0", "shallow clone")}, tracked: []Resource{foreign}, change: func(in *Input) { in.Sources = 2 },
			err: "ConfigMap shop/foreign: cannot tell whether this source deletes it",
		},
		"an object that cannot have a namespace is known by its name, whatever it writes": {
			past: []Entry{unreadable("r0", "shallow clone")}, tracked: []Resource{tracked("scheduling.k8s.io", "v1", "PriorityClass", "", "high")},
			change: func(in *Input) {
				in.render(t, docs(deployment, object1("scheduling.k8s.io/v1", "PriorityClass", "shop", "high")))
			},
			want: []string{"PriorityClass/high: hold"},
		},
		"no history at all is no proof that nothing was there": {tracked: []Resource{goneResource}, want: []string{"ConfigMap/gone: keep"}},
		"when nothing was ever released what is tracked is another source's": {
			past: []Entry{entry(t, "r1", deployment)}, marker: noRelease, tracked: []Resource{foreign}, change: func(in *Input) { in.Sources = 2 },
		},
		"an object that became a hook is kept": {
			past:    []Entry{entry(t, "r0", docs(deployment, object1("batch/v1", "Job", "shop", "migrate")))},
			tracked: []Resource{tracked("batch", "v1", "Job", "shop", "migrate")},
			change: func(in *Input) {
				in.render(t, docs(deployment, annotated(object1("batch/v1", "Job", "shop", "migrate"), annotationHook, "PreSync")))
			},
			want: []string{"Job/migrate: omit", "Job/migrate: keep"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t, deployment, replicas(t, grantsNobody))
			in.Past, in.Tracked = test.past, append(test.tracked, tracked("apps", "v1", "Deployment", "shop", "web"))
			if test.marker != "" {
				in.Tracked = append(in.Tracked, markerOf(in, test.marker))
			}
			if test.change != nil {
				test.change(&in)
			}
			p, err := Make(in)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			expectActions(t, p, append(append([]string{"Deployment/web: hold"}, test.want...), "Hold/*: marker")...)
			out := mustBytes(t, p)
			if !strings.Contains(out, test.text) {
				t.Errorf("lacks %q:\n%s", test.text, out)
			}
			if _, err := manifest.Parse([]byte(out)); err != nil {
				t.Errorf("what goes out cannot be read back: %v", err)
			}
			for _, k := range p.keepers {
				if !strings.Contains(string(k.manifest), annotationHook+": Skip") {
					t.Errorf("a keeper that would be applied:\n%s", k.manifest)
				}
			}
		})
	}
}

func TestRemovalWaitsForThePods(t *testing.T) {
	nobody := strings.Replace(policyObjectWeb, grantsWeb, grantsNobody, 1)
	signer := object1("apps/v1", "Deployment", "signer", "signer") + "spec: {template: {spec: {volumes: [{name: p, configMap: {name: policy}}]}}}\n"
	other := object1("v1", "Secret", "signer", "ca")
	loaded := live(t, replicas(t, grantsWeb), grantsWeb)
	tests := map[string]struct {
		text    string
		asking  []demand.Asker
		tracked []Resource
		past    []Entry
		want    []string
	}{
		"a grant that a live pod uses stays, and so does the signer that names its object; the rest goes out": {
			text: docs(nobody, signer, other, service), asking: []demand.Asker{asker("shop/web-1", "web")},
			want: []string{"ConfigMap/policy: hold", "Deployment/signer: hold", "Secret/ca: emit", "Service/web: emit", "Hold/*: marker"},
		},
		"a grant that nobody uses goes": {text: docs(nobody, signer), want: []string{"ConfigMap/policy: emit", "Deployment/signer: emit"}},
		"another pod's demand does not matter": {
			text: docs(nobody, signer), asking: []demand.Asker{asker("shop/api-1", "api")}, want: []string{"ConfigMap/policy: emit", "Deployment/signer: emit"},
		},
		"a policy that still grants it goes out": {
			text: docs(policyObjectWeb, signer), asking: []demand.Asker{asker("shop/web-1", "web")}, want: []string{"ConfigMap/policy: emit", "Deployment/signer: emit"},
		},
		"an emergency revocation applies at once": {
			text:   docs(strings.Replace(nobody, "namespace: signer", "namespace: signer, annotations: {grantfirst.dev/revoke: stolen key}", 1), signer),
			asking: []demand.Asker{asker("shop/web-1", "web")}, want: []string{"ConfigMap/policy: emit", "Deployment/signer: emit"},
		},
		"the object that a content-hash name replaces is kept": {
			text: docs(strings.Replace(nobody, "name: policy", "name: policy-2", 1), strings.Replace(signer, "name: policy}", "name: policy-2}", 1), other, service), asking: []demand.Asker{asker("shop/web-1", "web")},
			past:    []Entry{entry(t, "r0", docs(policyObjectWeb, service2()))},
			tracked: []Resource{tracked("", "v1", "ConfigMap", "signer", "policy"), tracked("", "v1", "Service", "shop", "late")},
			want:    []string{"ConfigMap/policy-2: hold", "Deployment/signer: hold", "Secret/ca: emit", "Service/web: emit", "ConfigMap/policy: keep", "Hold/*: marker"},
		},
		"with a hold of a switch everything waits": {
			text: docs(nobody, strings.ReplaceAll(deployment, "serviceAccountName: web", "serviceAccountName: api"), service), asking: []demand.Asker{asker("shop/web-1", "web")},
			want: []string{"ConfigMap/policy: hold", "Deployment/web: hold", "Service/web: hold", "Hold/*: marker"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t, test.text, loaded)
			in.Asking, in.Tracked, in.Past = test.asking, test.tracked, test.past
			p := mustMake(t, in)
			expectActions(t, p, test.want...)
			if len(p.Removals) > 0 && !strings.Contains(p.WaitingFor(), "pod shop/web-1") {
				t.Errorf("waits for %q", p.WaitingFor())
			}
			if strings.Contains(test.text, AnnotationRevoke) && len(p.Revoked) != 1 {
				t.Errorf("not announced: %q", p.Revoked)
			}
			if strings.Contains(name, "everything waits") && !strings.Contains(p.WaitingFor(), "ship them apart") {
				t.Errorf("a deadlock that is not named: %s", p.WaitingFor())
			}
		})
	}
}
