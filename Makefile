# Two targets do all the set-up they need: make demo and make test.
# make help lists the rest; docs/testing.md says what each test layer is for.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The toolchain that everything is built and tested with: a newer one named in
# the environment is taken instead, and `make GOTOOLCHAIN=local …` uses the
# installed go as it is.
TOOLCHAIN := go1.27.3
ifneq ($(origin GOTOOLCHAIN),command line)
  GOTOOLCHAIN := $(shell printf '%s\n' $(TOOLCHAIN) '$(GOTOOLCHAIN)' | grep '^go1\.' | sort -V | tail -n 1)
endif
export GOTOOLCHAIN

# One set of tags for all builds, tests and linters: a second one would compile
# all that depends on gRPC again. grpcnotrace keeps the linker's removal of
# unused methods alive; disable_grpc_modules leaves Envoy and xDS out.
export GOFLAGS := -buildvcs=false -tags=grpcnotrace,disable_grpc_modules
export CGO_ENABLED := 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
PROGRAMS := ./cmd/gpubroker ./cmd/gpubroker-agent

# What the programs are built for: the agent runs on rented machines (Linux), the
# broker and its command line also on people's own.
CROSS_BOTH   := linux/amd64 linux/arm64
CROSS_BROKER := darwin/arm64 windows/amd64

LINTER := .cache/tools/golangci-lint
STEP := .ci/step

# Narrow what runs: make bench PKG=./scheduler/... BENCH=Plan
PKG ?= ./...
BENCH ?= .
COUNT ?= 1
# Passed on to the demo: make demo ARGS=--keep
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: ## Install what is missing, build, and show a night of real work on a simulated cloud
	@.ci/setup demo
	@$(MAKE) build
	@go build -ldflags '-s -w' -o bin/tiles ./examples/tiles
	@bin/gpubroker demo $(ARGS)

.PHONY: test
test: ## Install what is missing and run every check and test (CI runs this)
	@$(STEP) --start
	@$(STEP) -v set-up .ci/setup test
	@$(STEP) -v emulators .ci/emulators
	@$(STEP) build $(MAKE) build-all
	@$(STEP) format $(MAKE) format-check
	@$(STEP) vet go vet ./...
	@$(STEP) lint $(MAKE) lint
	@$(STEP) -v test .ci/testenv go test -count=1 -timeout 30m ./...
	@CGO_ENABLED=1 $(STEP) -v test-race .ci/testenv go test -race -short -count=1 -timeout 30m ./...
	@$(STEP) -v cross $(MAKE) cross-check
ifneq ($(GOTOOLCHAIN),local)
	@$(STEP) vuln $(MAKE) vuln
endif
	@echo "everything passed with $$(go env GOVERSION):"
	@$(STEP) --times

.PHONY: slow
slow: ## Tests of full size: a file of 6 GB, one of 1 GB saved ten times, versitygw as the S3 server
	@GPUBROKER_SLOW=1 .ci/testenv go test -v -count=1 -timeout 60m -run 'Slow|Versitygw' ./internal/checkpoint ./internal/objects/s3

.PHONY: check
check: ## The quick part of test: build, format, vet, short tests, and lint if the linter is built
	@$(STEP) --start
	@$(STEP) build $(MAKE) build-all
	@$(STEP) format $(MAKE) format-check
	@$(STEP) vet go vet ./...
	@if [ -x $(LINTER) ]; then $(STEP) lint $(MAKE) lint; else echo "    no lint: make lint builds the linter once"; fi
	@$(STEP) -v test-short go test -short -timeout 10m ./...
	@$(STEP) --times

.PHONY: build
build: ## Build both programs into bin/
	@mkdir -p bin
	@$(STEP) build go build -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS)

# Packages that neither program uses are built too.
.PHONY: build-all
build-all:
	@go build ./...
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS)

.PHONY: cross
cross: $(CROSS_BOTH:%=cross/%) $(CROSS_BROKER:%=cross/%) ## Build for every platform into bin/OS-ARCH/

$(CROSS_BOTH:%=cross/%): BUILDS := $(PROGRAMS)
$(CROSS_BROKER:%=cross/%): BUILDS := ./cmd/gpubroker
.PHONY: $(CROSS_BOTH:%=cross/%) $(CROSS_BROKER:%=cross/%)
$(CROSS_BOTH:%=cross/%) $(CROSS_BROKER:%=cross/%): cross/%:
	@mkdir -p bin/$(subst /,-,$*)
	@echo "    $*"
	@GOOS=$(*D) GOARCH=$(*F) go build -ldflags '$(LDFLAGS)' -o bin/$(subst /,-,$*)/ $(BUILDS)

# Our own code for the other platforms, without the clouds' libraries: what can
# break there is ours, and compiling theirs four times would take ten minutes.
CLOUDS := aws-sdk-go-v2|azure-sdk-for-go|cloud\.google\.com/go
OWN = $$(GOOS=$(*D) GOARCH=$(*F) go list -f '{{.ImportPath}} {{.Deps}}' ./... | grep -Ev '$(CLOUDS)' | cut -d ' ' -f 1 | grep -Ev '$(1)')

.PHONY: cross-check $(CROSS_BOTH:%=check/%) $(CROSS_BROKER:%=check/%)
cross-check: $(CROSS_BOTH:%=check/%) $(CROSS_BROKER:%=check/%) ## Compile our own code for every platform (part of test)
$(CROSS_BOTH:%=check/%): check/%:
	@echo "    $*"
	@GOOS=$(*D) GOARCH=$(*F) go build $(call OWN,^$$)
$(CROSS_BROKER:%=check/%): check/%:
	@echo "    $*"
	@GOOS=$(*D) GOARCH=$(*F) go build $(call OWN,agent)

.PHONY: bench
bench: ## Run the benchmarks: PKG=./scheduler/... BENCH=Plan COUNT=5
	@set -o pipefail; .ci/testenv go test -p 1 -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 60m $(PKG) | .ci/benchtable

.PHONY: emulators
emulators: ## Install other people's emulators of clouds and object stores that the tests run
	@.ci/emulators

.PHONY: lint
lint: $(LINTER) ## Run the linters
	@$(LINTER) run ./...

.PHONY: fmt
fmt: $(LINTER) ## Format the Go files
	@$(LINTER) fmt

.PHONY: format-check
format-check:
	@files=$$("$$(go env GOROOT)/bin/gofmt" -l cmd examples internal providers queue scheduler); \
	[ -z "$$files" ] || { echo "not formatted (make fmt mends it):"; echo "$$files"; exit 1; }

.PHONY: generate
generate: ## Write generated code and documents again
	@go generate ./...

.PHONY: vuln
vuln: ## Scan both programs for known vulnerabilities, offline: VULNDB=latest
	@.ci/vuln $(PROGRAMS)

.PHONY: clean
clean: ## Remove what was built here (Go's own caches stay)
	@rm -rf bin .cache

# The tools have a module of their own, so that their hundreds of dependencies
# stay out of ours.
$(LINTER): internal/tools/go.mod
	@mkdir -p $(@D)
	@echo "building golangci-lint (once, a minute or two)"
	@GOFLAGS=-buildvcs=false go build -C internal/tools -trimpath -o '$(CURDIR)/$@' github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
