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
# $(call e2e,name,flags of go test) runs those tests on the cluster that KUBECONFIG names.
e2e = $(call tests,$(1),-count=1 -shuffle=off -parallel=3 -timeout=2h $(2) -args -e2e -image=$(E2E_IMAGE) -image-archive='$(CURDIR)/dist/image.tar',./test/e2e)
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
# Another version of Kubernetes than the pinned one, such as 1.36.3, for what starts one: tests, the demo, benchmarks.
K8S ?=
# How many jobs `make bench-idle` makes, 10000 if empty, and `make bench-scale`, 100 if empty.
JOBS ?=
# For how long `make torture` does what can go wrong; SEED= of an earlier run draws the same faults.
MINUTES ?= 10
SEED ?=
# For how long each crowd of `make bench-sinks` writes.
EACH ?= 1m
# Which worlds `make model` explores, and how deep; go run ./internal/lease/model/cmd -help
MODEL_ARGS ?=
# How many inputs, as 200000x, or how much time, as 1m, `make fuzz` gives each fuzz test.
FUZZTIME ?= 200000x
# Where the image of `make release` will be, without a tag; where its files will be; and what they are signed with, if anything.
REPOSITORY ?=
RELEASE_URL ?=
KEY ?=
# Where the archives of `make krew` will be found.
KREW_URL ?= https://example.com/singletonjob/$(VERSION)
# The path on its host of what `make site` builds.
SITE_BASE ?= /

# All that these targets run and build, they build with the same settings, so that Go's cache holds each package once and
# Kubernetes' libraries are compiled once. What builds further programs takes them from build/gotool, where a test compares.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false
# Only the race detector needs cgo; its packages are others in any case, and these are the ones of `go test -race` by hand.
WITH_RACE := export CGO_ENABLED=1 GOFLAGS=
WITHOUT_RACE := export CGO_ENABLED=0 GOFLAGS='$(GOFLAGS)'

# `make test` has three parts, one after the other. A package whose tests run agents or nodes, or measure time, has the machine to
# itself, as have those of the operator; the pure ones, and those that only ask an API server, run two at a time. Which packages start
# one is read from their imports.
PROCESSES := $(addprefix ./,cmd/agent internal/supervise test/localnode test/stack test/subprocess)
API = $(filter-out $(PROCESSES),$(shell git grep -lE '"github.com/singletonjob/operator/test/(apiserver|controlplane)"' -- '*_test.go' | \
  sed -E 's,/[^/]*$$,,; s,^,./,' | sort -u))
# Not the suites that take a cluster: make smoke and make e2e.
PURE = $(filter-out $(shell go list $(PROCESSES) $(API) ./test/lab ./test/e2e),$(shell go list ./...))
# Tests in which goroutines of ours meet run with the race detector. It makes others slower and sees nothing in them: pure
# packages, tests of programs that are built without it, and those of the operator in which one goroutine calls it by hand. RUNNING are
# the others: the operator runs by itself, or looks up what is elsewhere.
RACED := $(addprefix ./,internal/agent internal/controller internal/fenceproxy internal/kubelease internal/supervise fence/... \
  test/faultproxy test/localnode/... test/observe test/subprocess)
RACED_IN = $(filter $(shell go list $(RACED)),$(shell go list $(1)))
UNRACED_IN = $(filter-out $(shell go list $(RACED)),$(shell go list $(1)))
OPERATOR := ./internal/controller
RUNNING := TestASlowNamespace|TestAFleet|TestRunningJob|TestLostLabel|TestALeaseWithAnother|TestRefusals|TestEntrypoint|TestFewRequests|TestIdle|TestRenewalsPostpone
FUZZERS = $(shell git grep -oE '^func Fuzz[A-Za-z]+' -- '*_test.go' | sed -E 's,/[^/]*:func ,:,')

# $(call tests,name,flags of go test,packages) runs tests, and those that fail twice more, after all others, with nothing beside
# them. Its events stay in EVENTS/name.json. The verdict does not take gotestsum's word that a failed test has passed at last.
tests = $(call events,$(1),$(RERUNS) --packages='$(or $(strip $(3)),$(error no packages for $(1)))' -- -shuffle=on -timeout=30m $(2))
# $(call events,name,flags of gotestsum and what it runs) runs what prints the events of tests.
events = { said=0 && gotestsum="$$($(GOTESTSUM))" && mkdir -p $(EVENTS) && { \
  "$$gotestsum" --format=$(SHOWN) --format-hide-empty-pkg --hide-summary=skipped,output --jsonfile=$(EVENTS)/$(1).json $(2) || \
  said=1; } && $(VERDICT) $(EVENTS)/$(1).json && ((said == 0)); }
EVENTS := dist/ci
SHOWN := pkgname-and-test-fails
RERUNS := --rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test
VERDICT := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS)' go run ./test/verdict

# The tools have module files of their own, one each where their dependencies would drag each other to
# versions they were not released with. The go command builds them once and keeps them in its cache.
CONTROLLER_GEN := go tool -modfile=tools/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=tools/lint.mod golangci-lint
VALE = env CGO_ENABLED=1 GOFLAGS= go tool -modfile=tools/vale.mod vale
GOTESTSUM := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS)' go tool -n -modfile=tools/gotestsum.mod gotestsum

.PHONY: help
help: ## List the targets.
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '  %-10s %s\n' "$$target" "$$text"; done

.PHONY: generate
generate: ## Write deepcopy functions, CRD and RBAC (for config/ and the chart), docs/api.md, the chart's README, and the agent's dependencies.
	$(CONTROLLER_GEN) object paths=./api/...
	$(CONTROLLER_GEN) crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:stdout | \
	  go run ./config/crd/generate | tee config/crd/singletonjob.io_singletonjobs.yaml > charts/singletonjob/generated/crd.yaml
	go run ./docs/generate < config/crd/singletonjob.io_singletonjobs.yaml > docs/api.md
	go run ./charts/generate > charts/singletonjob/README.md
	$(CONTROLLER_GEN) rbac:roleName=singletonjob-operator paths=./internal/controller/... output:rbac:stdout | \
	  tee config/rbac/role.yaml > charts/singletonjob/generated/role.yaml
	GOOS=linux GOARCH=amd64 CGO_ENABLED=0 go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./cmd/agent | \
	  sort > cmd/agent/dependencies.txt

.PHONY: lint
lint: ## Run the linters, including the import wall and the clock ban.
	$(GOLANGCI_LINT) run ./...

# Messages and names are not read: only documents and comments. Vale finds no place for a finding in a comment that begins with a name of the
# code, and drops it. So it gets each file's comments alone, on the same lines. Comments behind code are left out.
.PHONY: words
words: ## Check the words of documents and comments (CONTRIBUTING.md says how to write); needs a C compiler.
	rm -rf dist/words
	git ls-files '*.go' ':!*zz_generated*' | while read -r file; do mkdir -p "dist/words/$$(dirname "$$file")"; \
	  awk '{ if (match($$0, /^[ \t]*\/\/( |$$)/) && $$0 !~ /^[ \t]*\/\/ [+]/) print substr($$0, RLENGTH + 1); else print "" }' "$$file" \
	    >"dist/words/$$file.md"; done
	{ git ls-files '*.md' ':!docs/api.md'; find dist/words -name '*.md'; } | xargs $(VALE) --config=tools/words/vale.ini --output=line

.PHONY: build
build: ## Compile the control plane and what else the tests need, and report progress.
	go run ./build/compile -tests -name='tests' ./...
	go run ./build/compile -tests -race -name='tests with the race detector' $(RACED)
	go run ./test/controlplane/get >/dev/null

.PHONY: test
test: ## Run every test that needs no root: units, simulation, a real API server, real agents.
	@failed=0; for part in test-pure test-api test-processes; do $(MAKE) --no-print-directory $$part || failed=1; done; exit $$failed

# Tests and what compiles them allocate much and end soon: they collect garbage less often, which is a tenth of their work. What
# test-processes runs has the settings that it has in a cluster.
test-pure test-api: export GOGC := 400
# Cached objects share values. With this, client-go ends a program that has changed a cached object.
test-api test-processes: export KUBE_CACHE_MUTATION_DETECTOR := true

.PHONY: test-pure
test-pure: ## Run the part of make test that needs neither an API server nor processes: units, simulation, model.
	@failed=0; $(WITH_RACE); $(call tests,pure-race,-p=2 -race,$(call RACED_IN,$(PURE))) || failed=1; \
	  $(WITHOUT_RACE); $(call tests,pure,-p=2,$(call UNRACED_IN,$(PURE))) || failed=1; exit $$failed

.PHONY: test-api
test-api: ## Run the part of make test that uses a real API server.
	@export KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)"; failed=0; \
	  $(WITH_RACE); $(call tests,api-race,-p=1 -race,$(call RACED_IN,$(filter-out $(OPERATOR),$(API)))) || failed=1; \
	  $(call tests,operator-race,-race -run='$(RUNNING)',$(OPERATOR)) || failed=1; \
	  $(WITHOUT_RACE); $(call tests,operator,-skip='$(RUNNING)',$(OPERATOR)) || failed=1; \
	  $(call tests,api,-p=2,$(call UNRACED_IN,$(API))) || failed=1; exit $$failed

.PHONY: test-processes
test-processes: ## Run the part of make test that runs agents, nodes and other processes.
	@export KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)"; failed=0; \
	  $(WITH_RACE); $(call tests,processes-race,-p=1 -race,$(call RACED_IN,$(PROCESSES))) || failed=1; \
	  $(WITHOUT_RACE); $(call tests,processes,-p=1,$(call UNRACED_IN,$(PROCESSES))) || failed=1; exit $$failed

.PHONY: verdict
verdict: ## Judge the results of all the gate's tests so far; flaky tests are listed in dist/ci/flaky.txt.
	@$(VERDICT) -quiet -list=dist/ci/flaky.txt dist/ci/*.json

.PHONY: sinks
sinks: ## Test the fences against their stores: PostgreSQL, MariaDB, SQLite, etcd, Redis, NATS, S3 (Debian's postgresql-15, pgbouncer, python3-psycopg2, npm, mariadb-server, redis-server; ~1 min). With SINGLETONJOB_DEEP=1 each crowd writes for a minute (~25 min).
	cd fence/fencepgx && go vet ./...
	cd test/sinks && go vet ./... && go test -count=1 -shuffle=on -timeout=60m ./...
	cd test/sinks/kv && go vet ./... && go test -count=1 -shuffle=on -timeout=60m ./...

.PHONY: bench-sinks
bench-sinks: ## Have 64 writers of 8 tenures write to one resource and to 1000 of each fence, for EACH (1m), and measure for as long what it costs beside writes without it: dist/sinks.json (what make sinks needs; ~50 min).
	mkdir -p dist && rm -f dist/sinks.json
	cd test/sinks && $(CROWDS) -run='^TestCrowd$$' . $(CROWD)
	cd test/sinks/kv && $(CROWDS) -run='^TestCrowd$$' . $(CROWD)
	KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)" $(CROWDS) -run='^TestGuard$$/^fence$$/^crowd$$' ./charts $(CROWD)

CROWDS = go test -count=1 -timeout=2h
CROWD = -crowd=$(EACH) -figures='$(CURDIR)/dist/sinks.json'

.PHONY: bench-late
bench-late: ## Measure how late writes of a dead process arrive, sent again by its kernel: dist/late.json (root, iproute2, nftables, ~4 min).
	go run ./test/bench/late

# The writers' program is built before the lab is up, since its modules take minutes the first time.
.PHONY: bench-sinks-lab
bench-sinks-lab: ## Count the stale writes that sinks with and without their fences store while nodes break: dist/sinks-lab.json and .md (root, mariadb-server, redis-server, ~14 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	cd test/sinks/writer && go vet ./... && go build -o /dev/null .
	cd test/sinks/kv/versitygw && go tool -n versitygw >/dev/null
	cd test/sinks/kv && go tool -n nats-server >/dev/null
	go run ./test/lab run go run ./test/bench/sinks -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)

.PHONY: fuzz
fuzz: ## Give every fuzz test FUZZTIME new inputs; what they find is in testdata/fuzz.
	@.ci/fuzz $(FUZZTIME) $(FUZZERS)

.PHONY: sim
sim: ## Simulate HOURS hours of elections under faults and print seeds, hours and wall time.
	go run ./internal/lease/sim/cmd -hours=$(HOURS)

.PHONY: model
model: ## Explore every state of small worlds with faults around the state machine; MODEL_ARGS="-profile=messages -more=1" goes deeper.
	go run ./internal/lease/model/cmd $(MODEL_ARGS)

.PHONY: mutants
mutants: ## Put small faults into copies of the tree, one at a time, and print those that no test catches. MUTANTS=pattern or PART=2/4 selects some.
	go run ./test/mutants -run='$(MUTANTS)' -part=$(or $(PART),1/1) -p=2 -alone='$(API) $(PROCESSES)'

.PHONY: kernels
kernels: ## Run the tests of processes, clocks and control groups on Linux 5.10, 6.1 and 6.12, in emulated machines (Debian, ~15 min).
	@$(call events,kernels,--raw-command -- go run ./test/kernels -kernels='$(KERNELS)' -run='$(RUN)')
kernels: EVENTS := dist/kernels
kernels e2e: SHOWN := testname

.PHONY: demo
demo: ## Show elections, failovers and a refused stale write on this machine. KEEP=1 leaves it running.
	@echo "building the parts that are not cached: the first build takes about 10 minutes on two cores"
	@go run ./build/compile -name='demo' ./test/demo ./test/workload ./cmd/agent ./cmd/manager
	@go run ./test/demo

.PHONY: demo-fence
demo-fence: ## Show that PostgreSQL refuses the stale writes of a Python and of a Node program (Debian's postgresql-15, python3-psycopg2, npm).
	@go run ./build/compile -name='demo-fence' ./test/demo ./test/workload ./cmd/agent ./cmd/manager
	@go run ./test/demo -fence

.PHONY: torture
torture: ## Inject random faults for MINUTES into jobs and into client-go's elector, and judge the results.
	@go run ./build/compile -name='torture' ./test/torture ./test/workload ./test/bench/elector ./cmd/agent ./cmd/manager
	@go run ./test/torture -minutes=$(MINUTES) $(if $(SEED),-seed=$(SEED))

.PHONY: verify
verify: ## Regenerate everything and fail on any difference; check sizes, dependencies and the chart.
	.ci/verify

# What VitePress needs is in site/package-lock.json; it has no scripts to run.
.PHONY: site
site: ## Build the documentation as a website in dist/site (npm, ~1 min); SITE_BASE=/path/ if it is not at the root of its host.
	cd site && npm ci --fetch-retries=5 --ignore-scripts --no-audit --no-fund && node_modules/.bin/vitepress build --base '$(SITE_BASE)'

.PHONY: image
image: ## Write dist/image.tar, an OCI archive of agent, manager and fence-proxy on an empty file system.
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" go run ./build/image -reference='$(IMAGE)' -platforms='$(PLATFORMS)' \
	  -version='$(VERSION)' -revision="$$(git rev-parse HEAD)" -output=dist/image.tar

.PHONY: plugin
plugin: ## Build bin/kubectl-singleton, and the helper for kubectl's shell completion.
	go build -ldflags='-s -w -X github.com/singletonjob/operator/internal/contract.Version=$(VERSION)' -o bin/kubectl-singleton ./cmd/kubectl-singleton
	cp cmd/kubectl-singleton/kubectl_complete-singleton bin/

# For each platform an archive, and a manifest for krew with their sums and the address that they will have.
.PHONY: krew
krew: ## Write dist/krew: archives of the plugin, and singleton.yaml, which says where they are: KREW_URL=https://…
	go run ./build/krew -version='$(VERSION)' -url='$(KREW_URL)' -output=dist/krew

.PHONY: release
release: ## Write dist/release, all that a version consists of: VERSION=v0.2.0 REPOSITORY=… RELEASE_URL=https://… [KEY=key.pem].
	go run ./build/release -version='$(VERSION)' -repository='$(REPOSITORY)' -url='$(RELEASE_URL)' -key='$(KEY)' -output=dist/release

# A lab that an interrupted run has left is removed first.
.PHONY: smoke
smoke: ## Install the product by Helm on a real Kubernetes of three nodes on this machine, crash one, drain one (root, ~5 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	@go run ./test/lab run -nodes=3 $(SHELL) -euo pipefail -c "$$SMOKE"
smoke: RERUNS :=
smoke: export SMOKE = $(call e2e,smoke,-run='^TestSmoke$$')

.PHONY: e2e
e2e: ## Test the whole product on a real Kubernetes of eight nodes on this machine, and break it (root, ~25 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	@failed=0; $(call tests,lab,-count=1 -shuffle=off -timeout=60m -args -lab,./test/lab) || failed=1; \
	  go run ./test/lab run -nodes=8 $(SHELL) -euo pipefail -c "$$NODES" || failed=1; \
	  $(if $(E2E_ARGS),,go run ./test/lab run -control-planes=3 $(SHELL) -euo pipefail -c "$$QUORUM" || failed=1;) exit $$failed
e2e: RERUNS :=
e2e: EVENTS := dist/e2e
e2e: export NODES = $(call e2e,nodes,$(E2E_ARGS))
e2e: export QUORUM = $(call e2e,quorum,-run=TestQuorum)

.PHONY: deep
deep: ## Run the second tier: dist/deep/report.md (root, hours). PARTS="test e2e" selects some.
	.ci/deep

.PHONY: bench
bench: ## Measure failovers beside the usual alternatives, on a real Kubernetes on this machine: dist/bench.json and dist/bench.svg (root, ~90 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go run ./test/lab run go run ./test/bench -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)

.PHONY: bench-schedule
bench-schedule: ## Count what becomes of a schedule's ticks under faults, beside CronJobs: dist/schedule.json (root, ~16 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go run ./test/lab run -nodes=4 go run ./test/bench/schedule -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)

.PHONY: bench-migration
bench-migration: ## Count which steps of migrations are done while their nodes break, beside Kubernetes Jobs: dist/migration.json (root, ~20 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	cd test/sinks/writer && go vet ./migrate && go build -o /dev/null ./migrate
	go run ./test/lab run -nodes=5 go run ./test/bench/migration -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)

.PHONY: bench-samples
bench-samples: ## Run every sample on the lab, beside the same program in a Deployment, StatefulSet, Job or CronJob, break both, and count: dist/samples.json and .md (root, busybox-static, ~25 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go run ./test/lab run -nodes=5 go test ./test/bench/samples -run=TestSamples -count=1 -v -timeout=2h -args -lab -image=$(E2E_IMAGE) \
	  -image-archive='$(CURDIR)/dist/image.tar' -json='$(CURDIR)/dist/samples.json' $(BENCH_ARGS)

.PHONY: bench-idle
bench-idle: ## Create JOBS schedules that are not due soon, and count the requests of the idle operator for them (10 000: 19 min).
	KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)" go test ./internal/controller -count=1 -v -timeout=3h \
	  -run=TestIdleSchedulesCostNothing -idle-jobs=$(or $(JOBS),10000) -idle-time=1m

.PHONY: bench-scale
bench-scale: ## Measure what JOBS jobs cost the operator, the API server and etcd, with simulated nodes: dist/scale.json and dist/scale.svg (100: ~8 min).
	KUBEBUILDER_ASSETS="$$(go run ./test/controlplane/get)" go run ./test/bench/scale -jobs=$(or $(JOBS),100) $(BENCH_ARGS)

.PHONY: bench-service
bench-service: ## Measure what a client of a job's Service sees of 50 handovers and 20 failovers: dist/service.json (root, ~20 min).
	$(MAKE) image PLATFORMS="linux/$$(go env GOARCH)" IMAGE=$(E2E_IMAGE)
	go run ./test/lab run -nodes=4 go run ./test/bench/service -image=$(E2E_IMAGE) -image-archive=dist/image.tar $(BENCH_ARGS)

.PHONY: bench-proxy
bench-proxy: ## Measure what the fence-proxy costs beside a plain reverse proxy, in turns (~40 s).
	go run ./test/bench/proxy
