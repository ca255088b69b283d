# make help lists what there is. Tests, the demo and the measurements find or start a Postgres:
# DATABASE_URL, else installed server programs, else a Docker engine (see internal/pgserver).

GO        ?= go
TESTFLAGS ?=
ARGS      ?=

# The packages in which goroutines meet; all others are as sequential as their callers.
CONCURRENT = . ./jobs/... ./worker/... ./jobtest/... ./internal/engine/... ./internal/postgres/...

# Without cgo sqlc parses SQL in WebAssembly: the same output, half the time to build, no C compiler.
SQLC = CGO_ENABLED=0 $(GO) tool -modfile=tools/go.mod sqlc
LINT = $(GO) tool -modfile=tools/lint/go.mod golangci-lint
WITH = scripts/ensure-postgres && $(GO) run ./internal/pgserver/with

.DEFAULT_GOAL = help
.PHONY: help demo test race test-versions test-plans test-metrics faults faults-proof test-docker test-bench bench-short bench-compare test-sql bench generate check-generated lint fmt

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: ## 2,000 orders and a folder of images through three workers, one of them killed (ARGS="-lease 2s")
	@scripts/ensure-postgres
	@$(GO) run ./examples/shop $(ARGS)

test: ## every test, all packages on one Postgres (TESTFLAGS="-run Name -v")
	@$(WITH) -- $(GO) test $(TESTFLAGS) ./...

race: ## the concurrent packages under the race detector (TESTFLAGS)
	@$(WITH) -- $(GO) test -race $(TESTFLAGS) $(CONCURRENT)

test-versions: ## the tests that talk to Postgres, on each major version (VERSIONS="14 18", TESTFLAGS)
	@TESTFLAGS="$(TESTFLAGS)" scripts/test-versions $(VERSIONS)

test-plans: ## the plan tests with a million jobs (ROWS), minutes
	@JOBGEN_PLAN_ROWS=$(or $(ROWS),1000000) $(WITH) -- $(GO) test -timeout 30m -run 'TestG11Hot' $(TESTFLAGS) ./internal/postgres

test-metrics: ## the alert rules and the dashboard on a real Prometheus, which it installs if there is none: a minute
	@command -v prometheus >/dev/null || scripts/apt-install prometheus
	@$(WITH) -- $(GO) test -tags prometheus -run 'EachAlert|Promtool|ForNothing' $(TESTFLAGS) ./internal/exporter

faults: ## worker processes under a random schedule of faults (ARGS="-faults.seed 7 -faults.for 2m")
	@scripts/ensure-postgres
	@$(GO) test -count=1 -timeout 60m -v -run TestPromisesHoldUnderFaults ./internal/faults -faults.for 2m $(ARGS)

faults-proof: ## deliberate breaks of the code, each of which the run above must notice, a quarter of an hour
	@scripts/ensure-postgres
	@$(GO) test -count=1 -timeout 60m -v -run TestMutationsAreNoticed ./internal/faults -faults.mutations . $(ARGS)

test-docker: ## Postgres in a container: on the engine that runs, else on one started for it
	@scripts/test-docker

test-bench: ## the module with the measurements builds and works
	@cd bench && $(GO) vet ./... && $(GO) test ./...

test-sql: ## enqueueing through sqlx, GORM, bun and ent, on pgx and lib/pq (TESTFLAGS)
	@scripts/ensure-postgres
	@cd sqltest && $(GO) run github.com/jobgen-go/jobgen/cmd/jobgen check ./... && $(GO) vet ./... && $(GO) test $(TESTFLAGS) ./...

bench: ## measure against other queues and hand-written SQL, minutes to hours (ARGS="-only features -rounds 5")
	@scripts/ensure-postgres
	@bench/peers/install
	@cd bench && $(GO) run . $(ARGS)

bench-short: ## the ratios that jobgen's targets are about, of a short run: half a minute, fails only if the program does
	@scripts/ensure-postgres
	@cd bench && $(GO) run . -short $(ARGS)

bench-compare: ## allocations and CPU time of a job and of an enqueue against another commit (ARGS="main 6")
	@$(WITH) -- scripts/bench-compare $(ARGS)

generate: ## sqlc's output and jobgen's
	$(SQLC) generate
	$(GO) generate ./...
	cd sqltest && $(GO) generate ./...

check-generated: ## fails if the output of make generate is not what is there
	$(SQLC) diff
	$(GO) run ./cmd/jobgen check ./...

lint: ## go vet and golangci-lint, formatting included
	$(GO) vet ./...
	$(LINT) run ./...

fmt: ## gofmt, with simplifications
	gofmt -s -w .
