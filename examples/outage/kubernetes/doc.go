// Package kubernetes has no code. Its tests show, on a running cluster, that
// the cluster does what grantfirst's own tests count on: pod certificates are
// asked for, and denied for good, ConfigMap volumes follow their objects,
// and containers end and are started again.
//
// The folders: cluster starts and stops everything (command: cmd/cluster);
// hollownode is the node, hollownode/containers what containers are there.
package kubernetes
