// Package conformance has no code. Its tests try on Argo CD's own packages, without a cluster, what grantfirst relies on: what Skip does,
// that hooks which are left out are not pruned, how waves wait, how a hold is shown, and how cmp-server calls a plugin. Where a new
// release of Argo CD does any of that otherwise, they fail: raise the version in go.mod and run them.
//
// The tests are the same text for each release that is tried, but for the import path and for release_test.go; a test compares them.
// To copy them from v2: go generate in v3/conformance.
package conformance
