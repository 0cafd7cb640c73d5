# SPDX-FileCopyrightText: 2026 IronCore contributors
# SPDX-License-Identifier: Apache-2.0

GO      ?= go
VERSION ?= 0.1.0-dev
LDFLAGS := -s -w -X main.version=$(VERSION)
BIN     := bin/cloud-hypervisor-provider
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Build everything and boot a demo guest through the daemon
	@hack/packages.sh run
	@$(MAKE) --no-print-directory build demo
	@bin/demo up

.PHONY: stop
stop: ## Delete the demo machine and stop the daemon of "make run"
	@if [ -x bin/demo ]; then bin/demo stop; fi

.PHONY: clean
clean: ## Undo "make run" and "make build"
	@if [ -x bin/demo ]; then bin/demo clean; fi
	@rm -rf bin

.PHONY: test
test: ## Install what the tests need and run them all
	@hack/packages.sh test
	$(GO) vet ./...
	$(GO) test -timeout 45m ./...
	$(GO) vet -C test/exec ./...
	$(GO) test -C test/exec -timeout 30m ./...
	@$(MAKE) --no-print-directory controlplane
	$(GO) vet -C test/controlplane ./...
	$(GO) test -C test/controlplane -timeout 30m ./...

.PHONY: test-exec
test-exec: ## Run client-go and irictl-machine against a real guest's console
	$(GO) test -C test/exec -timeout 30m -count=1 -v ./...

.PHONY: controlplane
controlplane: ## Build kube-apiserver, etcd and ironcore for tests; minutes, once
	@$(GO) run -C test/controlplane ./cmd/prepare

.PHONY: test-controlplane
test-controlplane: controlplane ## Run a machine through the real poollet; all of it with CONTROLPLANE=1
	$(GO) test -C test/controlplane -timeout 60m -count=1 -v ./...

.PHONY: test-systemd
test-systemd: ## Run the daemon's unit under a real systemd with a Linux guest, half an hour
	@hack/packages.sh test
	CHP_SYSTEMD=all $(GO) test -timeout 90m -count=1 -v ./test/systemd

.PHONY: test-ceph
test-ceph: ## Run the tests with a real Ceph cluster; missing packages are failures
	@hack/packages.sh ceph
	CEPH=1 $(GO) test -timeout 30m -count=1 -v ./test/ceph ./internal/volume/...
	CEPH=1 $(GO) test -timeout 30m -count=1 -v -run Ceph ./test/e2e

.PHONY: race
race: ## Run the tests under the race detector
	@hack/packages.sh test
	CGO_ENABLED=1 $(GO) test -race -timeout 60m ./...

.PHONY: bench
bench: ## Measure what SPECIFICATION.md promises
	$(GO) test -run '^$$' -bench . -benchmem ./test/bench ./internal/console/exec

.PHONY: lint
lint: ## Run golangci-lint
	$(GO) run $(LINT) run

.PHONY: build
build: ## Build the daemon, static and without cgo, as bin/cloud-hypervisor-provider
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/cloud-hypervisor-provider

.PHONY: demo
demo:
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/demo ./test/demo
