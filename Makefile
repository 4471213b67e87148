# Needs Go and nothing else; "make test" also a C compiler (the race detector). Module downloads are the only use of the network.

SHELL    := /bin/bash -o pipefail
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 60s

# The same line stands in the Dockerfile (a test compares them). The version is passed in, so a source archive gives the same binary as a clone.
GO_BUILD = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: help test build fuzz bench image-root cluster test-cluster race e2e outage conformance

help: ## Show this list (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# The build comes first so that the tests which start the binary find it compiled and spend no test time on it.
test: build ## Vet, check the formatting, run staticcheck and all tests with the race detector
	go vet ./...
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then printf 'run gofmt -w on:\n%s\n' "$$unformatted"; exit 1; fi
	go tool staticcheck ./...
	go test -race ./...

build: ## Build the static binary bin/grantfirst
	$(GO_BUILD) -o bin/grantfirst ./cmd/grantfirst

fuzz: ## Run every fuzz target for FUZZTIME (60s) on two cores
	.ci/fuzz $(FUZZTIME)

bench: ## Run the Go benchmarks
	go test -run '^$$' -bench . -benchmem ./...

image-root: ## Lay out what the image holds in the folder DIR
	@: $(if $(DIR),,$(error name the folder: make image-root DIR=...))
	$(GO_BUILD) -o $(DIR)/usr/local/bin/grantfirst ./cmd/grantfirst
	install -D -m 0644 plugin.yaml $(DIR)/home/argocd/cmp-server/config/plugin.yaml

CLUSTER = cd examples/outage/kubernetes && go run ./cmd/cluster

cluster: ## Start a real Kubernetes on loopback (the first build takes 20 minutes) and print how to reach it
	$(CLUSTER) up

# In one package after the other: they share the cluster's one node, and two cores.
test-cluster: ## Run the tests that need a real Kubernetes, on one of their own
	$(CLUSTER) run -in ../../.. -- sh -c 'go -C examples/outage/kubernetes test -count=1 ./cluster ./hollownode/containers . && go test -count=1 -p 1 -parallel 8 -timeout 30m ./examples/signer ./examples/argocd ./examples/race'

race: ## Try the race between a grant and its switch 200 times on a real Kubernetes (SEED and TRIES change that)
	$(CLUSTER) run -in ../../.. -- env GRANTFIRST_RACE_TRIES=$(or $(TRIES),200) GRANTFIRST_RACE_SEED=$(SEED) go test -count=1 -timeout 60m -run Race -v ./examples/race

# In a network of its own, because Argo CD listens on all addresses; so everything is built and fetched before.
ARGOCD_RUN = go run ./examples/outage/argocd/cmd/argocd run $(if $(ARGOCD_SRC),-source $(abspath $(ARGOCD_SRC)),-release $(or $(ARGOCD),v2)) sh -c

# RUN is a pattern of test names: make e2e RUN=Rollback
e2e: ## Replay the outage in a real Argo CD v2.14, ARGOCD=v3 (v3.2) or ARGOCD_SRC=DIR (needs redis-server; the first build takes half an hour)
	$(CLUSTER) build
	$(ARGOCD_RUN) 'cd examples/outage/kubernetes && exec go run ./cmd/cluster run -in ../../.. -- go test -count=1 -v -parallel 6 -timeout 30m -run "$(RUN)" ./examples/outage/e2e'

outage: ## Tell the story of the outage as it happens, without grantfirst and with it (ARGOCD, ARGOCD_SRC: as for e2e)
	$(CLUSTER) build
	$(ARGOCD_RUN) 'cd examples/outage/kubernetes && GRANTFIRST_NARRATED=1 exec go run ./cmd/cluster run -in ../e2e -- go test -count=1 -run "^(TestWithoutGrantfirstOneCommit|TestTheWatcherReleases)/^the_sync_is_automated$$"'

# With the flags by which Argo CD is compiled for e2e already; go vet would look at all of Argo CD.
conformance: ## Try on the packages of Argo CD v2.14 and v3.2 (or ARGOCD=v2) what grantfirst relies on (no cluster; slow where nothing is compiled)
	for release in $(or $(ARGOCD),v2 v3); do CGO_ENABLED=0 go test -C examples/outage/argocd/$$release -count=1 -vet=off -trimpath -buildvcs=false -ldflags "-s -w" ./conformance || exit; done
