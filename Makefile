# Every target works from a fresh clone with Go, git and make. What they build once, tools and a control plane, is kept in
# the caches of Go and of this user; nothing else outside the checkout is touched.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE ?= singletonjob/operator:$(VERSION)
PLATFORMS ?= linux/amd64,linux/arm64
# What the tests on a real cluster call the image that they build and load.
E2E_IMAGE := singletonjob/operator:e2e
E2E := go test -json -count=1 -parallel=3 -timeout=2h ./test/e2e -e2e -image=$(E2E_IMAGE) -image-archive='$(CURDIR)/dist/image.tar'
# More flags for them, such as E2E_ARGS='-v -run TestTakeover' and BENCH_ARGS='-runs=1 -slow-runs=0'.
E2E_ARGS ?=
BENCH_ARGS ?=
# Which faults `make mutants` tries, as a regular expression over their names and files; all if empty.
MUTANTS ?=
# Simulated hours that `make sim` runs.
HOURS ?= 1000
# Which kernels `make kernels` takes, such as 5.10,6.12, and which tests, as a regular expression; all if empty.
KERNELS ?=
RUN ?=
# For how long `make torture` does what can go wrong; SEED= of an earlier run draws the same faults.
MINUTES ?= 10
SEED ?=
# Which worlds `make model` explores, and how deep; go run ./internal/lease/model/cmd -help
MODEL_ARGS ?=
# How long `make fuzz` gives each fuzz test.
FUZZTIME ?= 1m
# A file of tests that may be skipped: `make test` fails if any other is.
SKIPS ?=

# All that these targets run and build, they build with the same settings, so that Go's cache holds each package once and
# Kubernetes' libraries are compiled once. What builds further programs takes them from build/gotool, where a test compares.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false
# Only the race detector needs cgo; its packages are others in any case, and these are the ones of `go test -race` by hand.
WITH_RACE := CGO_ENABLED=1 GOFLAGS=

# Tests in which goroutines of ours meet run with the race detector. It makes others slower and sees nothing in them: pure
# packages, tests of programs that are built without it, and whole lives of jobs in which one goroutine calls the operator.
# Two packages at a time, and one of the longest beside them, since those wait the most: more would make each other wait.
TESTS := go test -json -p 2 -shuffle=on -timeout=90m
REPORT = go run ./test/report -skips='$(SKIPS)'
RACED := $(addprefix ./,internal/agent internal/controller internal/kubelease internal/supervise fence/... \
  test/faultproxy test/localnode/... test/observe test/subprocess)
LIVES := TestTheOperatorEnds|TestAnOperatorThatSees|TestTwoOperatorsThatSee
LONGEST := ./test/stack ./cmd/agent
UNRACED = $(filter-out $(shell go list $(RACED) $(LONGEST)),$(shell go list ./...))
FUZZERS = $(shell git grep -oE '^func Fuzz[A-Za-z]+' -- '*_test.go' | sed -E 's,/[^/]*:func ,:,')

# The tools have module files of their own, one each where their dependencies would drag each other to
# versions they were not released with. The go command builds them once and keeps them in its cache.
CONTROLLER_GEN := go tool -modfile=tools/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=tools/lint.mod golangci-lint

.PHONY: help
help: ## List the targets.
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '  %-10s %s\n' "$$target" "$$text"; done

.PHONY: generate
generate: ## Write deepcopy functions, CRD and RBAC (for config/ and the chart), and the agent's dependencies.
	$(CONTROLLER_GEN) object paths=./api/...
	$(CONTROLLER_GEN) crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:stdout | \
	  go run ./config/crd/generate | tee config/crd/singletonjob.io_singletonjobs.yaml > charts/singletonjob/generated/crd.yaml
	$(CONTROLLER_GEN) rbac:roleName=singletonjob-operator paths=./internal/controller/... output:rbac:stdout | \
	  tee config/rbac/role.yaml > charts/singletonjob/generated/role.yaml
	GOOS=linux GOARCH=amd64 CGO_ENABLED=0 go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./cmd/agent | \
	  sort > cmd/agent/dependencies.txt

.PHONY: lint
lint: ## Run the linters, the import wall and the clock ban among them.
	$(GOLANGCI_LINT) run ./...

.PHONY: test
test: ## Run every test that needs no root: units, simulation, a real API server, real agents (~6 min).
	go run ./build/compile -tests -name='tests' $(LONGEST) $(UNRACED) ./internal/controller
	go run ./build/compile -tests -race -name='tests with the race detector' $(RACED)
	@export KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)"; longest="$$(mktemp)"; { failed=0; \
	  $(TESTS) -p 1 $(LONGEST) >"$$longest" & \
	  $(WITH_RACE) $(TESTS) -race -skip='$(LIVES)' $(RACED) || failed=1; \
	  $(TESTS) -run='$(LIVES)' ./internal/controller || failed=1; \
	  $(TESTS) $(UNRACED) || failed=1; \
	  wait $$! || failed=1; cat "$$longest"; rm "$$longest"; exit $$failed; \
	} | $(REPORT)

# Each new input would be made smaller for up to a minute, in which nothing else is tried.
.PHONY: fuzz
fuzz: ## Give every fuzz test FUZZTIME of new inputs.
	@for fuzzer in $(FUZZERS); do \
	  go test -run='^$$' -fuzz="^$${fuzzer#*:}$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=20x "./$${fuzzer%:*}"; done

.PHONY: sim
sim: ## Simulate HOURS hours of elections under faults and print seeds, hours and wall time.
	go run ./internal/lease/sim/cmd -hours=$(HOURS)

.PHONY: model
model: ## Explore every state of small worlds with faults around the state machine; MODEL_ARGS="-profile=messages -more=1" goes deeper.
	go run ./internal/lease/model/cmd $(MODEL_ARGS)

.PHONY: mutants
mutants: ## Put small faults into a copy of the tree, one by one, and print those that no test sees. MUTANTS=pattern takes some.
	go run ./test/mutants -run='$(MUTANTS)'

.PHONY: kernels
kernels: ## Run the tests of processes, clocks and control groups on Linux 5.10, 6.1 and 6.12, in emulated machines (Debian, ~15 min).
	go run ./test/kernels -kernels='$(KERNELS)' -run='$(RUN)' | go run ./test/report -skips=test/kernels/skips

.PHONY: demo
demo: ## Show elections, failovers and a refused stale write on this machine. KEEP=1 leaves it running.
	@echo "building what the caches lack: the first time that takes some 10 minutes on two cores"
	@go run ./build/compile -name='demo' ./test/demo ./test/workload ./cmd/agent ./cmd/manager
	@go run ./test/demo

.PHONY: torture
torture: ## Do everything that can go wrong, at random, for MINUTES, to jobs and to client-go's elector, and judge what came of it.
	@go run ./build/compile -name='torture' ./test/torture ./test/workload ./test/bench/elector ./cmd/agent ./cmd/manager
	@go run ./test/torture -minutes=$(MINUTES) $(if $(SEED),-seed=$(SEED))

.PHONY: verify
verify: ## Regenerate everything and fail on any difference; check sizes, dependencies and the chart.
	.ci/verify

.PHONY: image
image: ## Write dist/image.tar, an OCI archive of the agent and the manager on an empty file system.
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" go run ./build/image -reference='$(IMAGE)' -platforms='$(PLATFORMS)' \
	  -version='$(VERSION)' -revision="$$(git rev-parse HEAD)" -output=dist/image.tar

.PHONY: e2e
e2e: ## Test the whole product on a real Kubernetes of eight nodes on this machine, and break it (root, ~25 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go test -json -count=1 -timeout=60m ./test/lab -lab | $(REPORT)
	go run ./test/lab run -nodes=8 $(E2E) $(E2E_ARGS) | $(REPORT) $(if $(filter -v,$(E2E_ARGS)),-v)
	$(if $(E2E_ARGS),,go run ./test/lab run -control-planes=3 $(E2E) -run=TestQuorum | $(REPORT))

.PHONY: bench
bench: ## Measure failovers beside today's alternatives, on such a Kubernetes: dist/bench.json and dist/bench.svg (root, ~90 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go run ./test/lab run go run ./test/bench -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)
