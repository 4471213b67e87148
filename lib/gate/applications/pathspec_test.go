package applications

import "testing"

func TestFilesAreSelectedAsGitSelectsThem(t *testing.T) {
	for _, test := range []struct {
		pattern string
		in, out []string
	}{
		{"a/b.yaml", []string{"a/b.yaml"}, []string{"a/b.yaml2", "x/a/b.yaml", "a/b"}},
		{"a", []string{"a", "a/b", "a/b/c"}, []string{"ab", "b/a"}},
		{"a/", []string{"a/b", "a/b/c"}, []string{"a", "ab/c"}},
		{"./a//b/../c", []string{"a/c", "a/c/d"}, []string{"a/b/c"}},
		{"", []string{"a", "a/b"}, nil},
		{".", []string{"a", "a/b"}, nil},
		{"*", []string{"a", "a/b/c"}, nil},
		{"*.yaml", []string{"a.yaml", "a/b.yaml"}, []string{"a.yml", "a.yaml/x"}},
		{"a/*/c.yaml", []string{"a/b/c.yaml", "a/b/b/c.yaml"}, []string{"a/c.yaml"}},
		{"a/**/c.yaml", []string{"a/b/c.yaml", "a/b/b/c.yaml"}, []string{"a/c.yaml"}},
		{"**/c.yaml", []string{"a/c.yaml"}, []string{"c.yaml"}},
		{"a?b", []string{"a/b", "axb"}, []string{"ab"}},
		{"a[bc]d", []string{"abd", "acd"}, []string{"aed", "ad", "abcd"}},
		{"a[!bc]d", []string{"aed", "a/d"}, []string{"abd"}},
		{"a[^b-d]e", []string{"aae"}, []string{"ace"}},
		{"a[]x]b", []string{"a]b", "axb"}, []string{"ab"}},
		{"a[[:digit:]x]b", []string{"a1b", "axb"}, []string{"ayb"}},
		{`a[\]]b`, []string{"a]b"}, []string{`a\b`}},
		{"a[b", []string{"a[b", "a[b/c"}, []string{"ab"}},
		{`a\*b`, []string{"a*b", `a\*b`}, []string{"axb"}},
		{"a*b*c*d", []string{"abcd", "axbxcxd", "abbccd"}, []string{"abdc", "abc"}},
		{"*a*a*a*a*a*a*a*a*a*a*b", nil, []string{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
	} {
		spec, err := newPathspec(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range test.in {
			if !spec.matches(name) {
				t.Errorf("%q does not select %s", test.pattern, name)
			}
		}
		for _, name := range test.out {
			if spec.matches(name) {
				t.Errorf("%q selects %s", test.pattern, name)
			}
		}
	}
}

func FuzzPathspec(f *testing.F) {
	f.Add("a[[:alpha:]-z]*?\\", "abc")
	f.Add("[!", "x")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if spec, err := newPathspec(pattern); err == nil {
			spec.matches(name)
		}
	})
}
