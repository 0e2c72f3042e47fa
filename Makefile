# Every target works from a fresh clone with Go, git and make; nothing is installed outside the Go caches
# and $(CACHE).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE ?= singletonjob/operator:$(VERSION)
# Simulated hours that `make sim` runs.
HOURS ?= 1000
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/singletonjob

# The tools have module files of their own, one each where their dependencies would drag each other to
# versions they were not released with. The go command builds them once and keeps them in its cache.
CONTROLLER_GEN := go tool -modfile=tools/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=tools/lint.mod golangci-lint

.PHONY: help
help: ## List the targets.
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '  %-10s %s\n' "$$target" "$$text"; done

.PHONY: generate
generate: ## Write deepcopy functions, the CRD and the RBAC rules, for config/ and for the chart.
	$(CONTROLLER_GEN) object paths=./api/...
	$(CONTROLLER_GEN) crd:generateEmbeddedObjectMeta=true paths=./api/... output:stdout | \
	  go run ./config/crd/generate config/crd/singletonjob.io_singletonjobs.yaml
	$(CONTROLLER_GEN) rbac:roleName=singletonjob-manager paths=./internal/controller/... output:rbac:dir=config/rbac

.PHONY: lint
lint: ## Run the linters, the import wall and the clock ban among them.
	$(GOLANGCI_LINT) run ./...

.PHONY: test
test: ## Run every test that needs no root: units, simulation, a real API server, real agents (≤ 10 min).
	assets="$$(go run ./test/controlplane)"
	KUBEBUILDER_ASSETS="$$assets" go test -race -shuffle=on -timeout=10m ./...

.PHONY: sim
sim: ## Simulate HOURS hours of elections under faults and print seeds, hours and wall time.
	go run ./internal/lease/sim/cmd -hours=$(HOURS)

.PHONY: demo
demo: ## Show elections, failovers and a refused stale write on this machine. KEEP=1 leaves it running.
	go run ./test/demo

.PHONY: verify
verify: ## Regenerate everything and fail on any difference; check sizes, dependencies and the chart.
	.ci/verify

.PHONY: image
image: ## Write dist/image.tar, an OCI archive of the agent and the manager on scratch.
	go run ./build/image -reference=$(IMAGE) -output=dist/image.tar
