package manifest

// oddities are streams with something that a simpler reader gets wrong.
var oddities = []string{
	"x: \"\nkind: A\ny: \"\n", "x: '\nkind: A\ny: '\n", "x: {\nkind: A\n }\n", "x: [{\nkind: A\n }]\n", "x: [a,\nkind: A\n ]\n",
	"kind: A\nx: [a\n\t]\n", "{\n\t\"kind\": \"A\",\n\t\"x\": [\n\t\t1\n\t]\n}\n", "kind: A\nno: 0\n",
	"kind: A\nx: \"\n...\n\"\n", "kind: A\nx: {\n... : y}\n", "kind: A\nx: {\n%: y}\n",
	"kind: A\n", "kind: A", "---\nkind: A\n---\nkind: B\n---\n", "# c\n---\n# c\nkind: A\n", "kind: A\n---#c\nkind: B\n", "---#c\nkind: A\n",
	"\ufeffkind: A\n", "\ufeff---\nkind: A\n", "---\n\ufeffkind: A\nb: c\n", "---\n\ufeff{kind: A}\n", "kind: A\n---\n\ufeffkind: B\n",
	"{\"kind\":\"A\"}{\"kind\":\"B\"}\n", "{\"kind\":\"A\"}\n---\nkind: B\n", "{\"kind\":\"A\"}{\"kind\":\"B\"}\n---\nkind: C\n", "{kind: A}\n", "{kind: A}\n---\nkind: B\n",
	"kind: A\n---\n{\"kind\":\"A\"}{\"kind\":\"B\"}\n", "{\"kind\":\"A\"} # c\n", "{\"kind\":\"A\"}\nkind: B\n", "{\"kind\":\"A\"} null\n", "{\"kind\":\"A\"}, {\"kind\":\"B\"}\n",
	"%YAML 1.1\n---\nkind: A\n", "---\n%YAML 1.1\n---\nkind: A\n", "kind: A\n%YAML 1.1\n", "%YAML 1.1\r---\rkind: A\n", "kind: A\n...\nkind: B\n", "kind: A\n...\n", "...\nkind: A\n",
	"kind: A\r---\rkind: B\n", "kind: A\u0085kind: B\n", "# c\u2028kind: A\n", "kind: A\r\n---\r\nkind: B\r\n", "a: 'x\r\n\r\n  y'\r\nkind: A\r\nb: |\r\n  x\r\n   y\r\n",
	"a: \"\nkind: B\n\"\nkind: A\n", "a: '\nkind: B\n'\nb: c\n", "a: {\nkind: B\n}\nkind: A\n", "a: [\nkind: B\n]\n", "kind: A\nkind: null\n", "kind: A\n\"kind\": null\n", "kind: A\n? kind\n: null\n",
	"kind: A\n<<: {kind: null}\n", "kind: A\n!!str kind: null\n", "kind : A\n", "kind: A\nkind : null\n", "kind: y\n", "kind: 1\n", "kind: \"A\"\n", "kind: A # c\n", "kind: A b\n  c\n", "kind:\n  A\n", "kind: |\n  A\n",
	"kind: A\nitems: []\n", "kind: A\nitems:\n- kind: B\n- {kind: C, metadata: {name: x}}\n- kind: L\n  items:\n  - kind: D\n", "kind: A\nitems:\n- x\n", "kind: A\nitems:\n- a: b\n", "kind: A\nitems: null\n", "kind: A\nitems: null\nspec: {}\n", "kind: A\nitems: x\n", "kind: A\nitems: &x [kind: B]\n",
	"kind: A\nx:\n- a\n- - b\n  - c\n-\n- d: e\n  f: g\n- - - h\n", "kind: A\nx: a\n  b\n\n  c\n", "kind: A\nx: a # c\n  b\n", "kind: A\nx:\n  a\n b\n", "kind: A\nx: |\n    \n  a\n", "kind: A\nx: |+\n  a\n\n \ny: >-\n  a\n  b\n\n   c\n  d\nz: |\n# c\n",
	"kind: A\nx: >\n\n  a\n\n\n  b\n   c\n   d\n  e\n", "kind: A\nx: |+\n\n\ny: |\n\nz: >+\n  x\n   ", "kind: A\nx: \"a\\\n  b\\n\\x41\\u0042\\U00000043 \\\n\n  d\n  e\"\n", "kind: A\nx: \"\\x7f\"\n", "kind: A\nx: \"\\N\"\n", "kind: A\nx: \"\\ud83d\\ude00\"\n", "{\"kind\":\"A\",\"x\":\"\\u0085\\u007f\\/\"}", "{\"kind\":\"A\",\"x\":\"\\u0085\\u007f\"}",
	"kind: A\nx: [1, -2, 0x10, 0o17, 017, 08, 1e3, 1E+2, 1.5, .5, -.inf, 1_000, 0b11, +1, 9007199254740993, 9223372036854775808, 18446744073709551616, -0, -0.0, 1e21, 2001-01-01, 12:30, y, on, Off, ~, Null, '', <<]\n",
	"kind: A\nx: {a: 1, 'b': [c, \"d\"], e: {}, f: , g: h,}\n", "kind: A\nx: {a:1, b}\n", "kind: A\nx: {\"a\":1,\"b\":\"c\"}\n", "kind: A\nx: {a?b: c}\n", "kind: A\nx: {a: b:c, d: http://e/f}\n", "kind: A\nx: {\n# c\na: b, # d\n  'e': f }\n", "kind: A\nx: [a\n b]\n", "kind: A\nx: [a: b]\n",
	"kind: A\nx: &a {b: c}\ny: *a\nz:\n  <<: *a\n  d: e\n", "kind: A\nx: !!binary aGVsbG8=\n", "kind: A\nx: !!str 1\n", "kind: A\nx: !foo\n  a: b\n", "kind: A\nx: &a\n- b\n", "kind: A\n1: b\n\"1\": c\n", "kind: A\ntrue: b\n", "kind: A\n~: b\n", "kind: A\nx:\n\ty: z\n", "kind: A\nx:\ty\n", "kind: A\nx: y\t# c\n", "\tkind: A\n", "  kind: A\n  x: y\n",
	"kind: A\nmetadata: null\n", "kind: A\nmetadata:\n", "kind: A\nmetadata: {}\n", "kind: A\nmetadata:\n  name: 1\n  namespace: x\n  generateName: y\n  labels: {a: b, c: 1}\n  annotations:\n    a: b\n    \"c\": 'd'\n", "kind: A\nmetadata:\n  annotations:\n", "kind: A\nmetadata:\n  annotations: {}\n", "kind: A\nmetadata: {annotations: {a: b}}\n", "{\"kind\":\"A\",\"metadata\":{\"annotations\":{\"a\":\"b\"}}}\n", "{\"kind\":\"A\",\n  \"metadata\":{\n    \"annotations\":{\n      \"a\":\"b\"\n    }\n  }\n}\n",
	"kind: A\nmetadata:\n  annotations:\n    a: |\n      x\n      y\n    b: \"x\n      y\"\n    c: x\n      y\n    d:\n    e: # c\n", "kind: A\nmetadata: &m\n  annotations: {a: b}\nx: *m\n", "kind: A\nmetadata:\n  annotations: {a: b}\nmetadata:\n  annotations: {c: d}\n",
	"apiVersion: a/b/c\nkind: A\n", "kind: A\nx: it's\ny: a\"b\nz: a [b] {c}\n", "kind: A\n\"po\\x64Certificate\": x\n", "kind: A\n\"pod\\\n  Certificate\": x\n", "kind: A\nx: \"pod\\\n  Certificate\"\n", "kind: A\nx: !<tag:yaml.org,2002:binary> cG9kQ2VydGlmaWNhdGU=\n", "kind: A\nx: !!binary cG9kQ2VydGlmaWNhdGU=\n", "{\"kind\":\"A\",\"\\u0070odCertificate\":1}",
	"null\n", "~\n", "---\nnull\n---\nkind: A\n", "- a\n- b\n", "x\n", "time=1 level=info msg=\"x\"\n---\nkind: A\n", "a: b\n", "kind: A\n--- foo\nkind: B\n", "kind: A\n---foo\n", "--- {kind: A}\n", "kind: A\n--- # c\nkind: B\n", "", "# c\n", "kind: A\nx: |\n  a\n  ---\n  b\n",
	"kind: A\nx: \"\n---\n\"\n", "kind: A\nx: a\n}\n", "kind: A\n]\n", "kind: A\nERROR foo\n", "kind: A\n- b\n", "kind: A\nx: a: b\n", "kind: A\nx: 'a': b\n", "kind: A\n  x: b\n", "kind: A\nx:\n   a: b\n  c: d\n", "kind: A\nx: %a\n", "kind: A\nx: @a\n", "kind: A\nx: -\n", "kind: A\nx: - a\n", "kind: A\nx: ? a\n", "kind: A\nx: *a\n", "kind: A\nx: \"a\" b\n", "kind: A\nx: [a] b\n", "kind: A\nx: \"\\/\"\n",
}
