// Package e2e has no code. Its tests replay the outage in a real Argo CD on a real Kubernetes, with grantfirst installed by the files of
// examples/argocd, and without it.
//
// Argo CD, its sidecar and the watcher are pods, installed by Argo CD's own manifests and examples/argocd as a kustomize component. What
// is patched besides is what the cluster's node lacks, a name service and a writable /usr (installation_test.go).
//
// The same tests run on every version of Argo CD that examples/outage/argocd builds. Where versions differ the running one is asked. With
// GRANTFIRST_NARRATED set the story of each Application is printed as it happens (make outage).
//
// Each test is of one of these scenarios, by whose number it stands in the table that is printed at the end:
//
//	 1  one commit brings grant and switch
//	 2  the grant is in another Application than the workload
//	 3  a new Application brings everything, or a later one the signer
//	 4  three commits during one hold
//	 5  automated with and without selfHeal and prune, and manual
//	 6  ServerSideApply and ServerSideDiff, with a hook of the last sync that is live
//	 7  sync waves, PruneLast, ApplyOutOfSyncOnly
//	 8  a Helm chart with hooks, a kustomization with generators
//	 9  two signer replicas, one of them slow
//	10  the grant was forgotten
//	11  the watcher is killed at random
//	12  RollingSync in three steps
//	13  repo-server restarts and its cache is lost during a hold
//	14  an unrelated edit of the policy is in flight
//	15  an Application moves from kustomize to the plugin
//	16  a PreSync hook fails after the release
//	17  a sync window is closed
//	18  two sources, the grant in one and the switch in the other
//	19  git revert and rollback, during the hold and after it
//	20  the Application is deleted during the hold
//	21  an override
//	22  the signers are down and the API server is slow
//	23  somebody else's hard refresh at the moment of the release
package e2e
