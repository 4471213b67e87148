# The image of grantfirst: one static binary and the file that tells Argo CD how to call it. No shell, no git, no package manager.
#
#   docker build -t registry.example/grantfirst:1.0 --build-arg VERSION=1.0 .
#
# As a sidecar of argocd-repo-server its command is /var/run/argocd/argocd-cmp-server, a static binary too, which Argo CD's own init
# container puts into a shared volume. The sidecar runs as user 999 and needs volumes at /var/run/argocd, /home/argocd/cmp-server/plugins,
# /tmp (an emptyDir of its own: the repositories are unpacked there) and the configuration at /etc/grantfirst. The root file system may be
# read-only. There are no CA certificates: nothing is fetched, and a cluster's API server comes with its own.
ARG GO_IMAGE=golang:1.26
FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/grantfirst ./cmd/grantfirst

FROM scratch
COPY --from=build /out/grantfirst /usr/local/bin/grantfirst
# Where argocd-cmp-server looks for it (Argo CD v2.14 and v3, --config-dir-path).
COPY plugin.yaml /home/argocd/cmp-server/config/plugin.yaml
# argocd-cmp-server finds the commands of plugin.yaml by PATH, and a scratch image has none.
ENV PATH=/usr/local/bin
USER 999
ENTRYPOINT ["/usr/local/bin/grantfirst"]
