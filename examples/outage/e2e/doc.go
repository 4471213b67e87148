// Package e2e has no code. Its tests replay the outage in a real Argo CD on a real Kubernetes, with grantfirst installed by the files of
// examples/argocd, and without it.
//
// Argo CD, its sidecar and the watcher are pods, installed by Argo CD's own manifests and examples/argocd as a kustomize component. What
// is patched besides is what the cluster's node lacks, a name service and a writable /usr (installation_test.go).
package e2e
