# Development targets. Using shaper needs none of them: go build ./cmd/shaper.

GO       ?= go
FUZZTIME ?= 10s
ROUNDS   ?= 31
PREFIX   ?= /usr/local

.PHONY: help setup build install generate fmt lint test race vm chaos fuzz golden bench bench-peers clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that tests use (needs root)
	@.ci/packages chromium iproute2 clang-14 llvm-14 libbpf-dev redis-server valkey-server/bookworm-backports spin gcc

build: ## build bin/shaper
	$(GO) build -o bin/shaper ./cmd/shaper

bin/shaper:
	$(GO) build -o $@ ./cmd/shaper

install: bin/shaper ## install bin/shaper and its systemd unit below PREFIX, in DESTDIR
	install -D bin/shaper $(DESTDIR)$(PREFIX)/bin/shaper
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/local/|$(PREFIX)/|' docs/shaper@.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/shaper@.service

generate: ## make the generated files again: the eBPF objects, the test captures
	@.ci/packages clang-14 llvm-14 libbpf-dev
	$(GO) generate ./bpf
	$(GO) run ./dataplane/replay/internal/gencaps -o testdata/pcaps

fmt: ## format the code
	$(GO) tool gofumpt -w .

lint: ## gofumpt, go vet, staticcheck, go mod tidy
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted, make fmt: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

# Live tests wait more than they work, so more of them run at once than there are
# CPUs. The faults come by themselves: beside them nothing that measures rates is right.
test: setup ## all tests
	$(GO) test -timeout 30m -parallel $$((2 * $$(nproc))) $$($(GO) list ./... | grep -v /internal/chaos)
	$(GO) test -timeout 30m ./dataplane/kernel/internal/chaos

# Left out is what runs the command, which is built without it, and what has one
# goroutine at length: comparisons with a model, loading programs, qdiscs.
race: ## all tests under the race detector that it could find something in
	$(GO) test -race -skip '^Test(Live|Docs|AgainstOracle|LongRun|Random|Misses|OneTruth|Spray|FarStamps|Budget(OneTruth|Change)|Lease(OneTruth|Bound)|Why(Against|Random)|Queue(Inherits|Rows|Wraps)|Loads|ManyClasses|Qdisc|IFB|Spin)' ./...

# What 6.12 has that the kernel at hand may lack, and 6.1 lacks, is fq and qdiscs beside TCX.
vm: ## the kernel plane's tests on Debian's 6.1 kernel, in qemu, and those of queues on 6.12
	.ci/vm -k '6.1,6.12=Loads|Truth|Queue|Qdisc|IFB|NoTCX' ./dataplane/kernel ./cmd/shaper/internal/livetest ./internal/nettest

# It takes hours. SHAPER_CHAOS_BUDGET=20m has it take a part, chosen by the seed.
chaos: ## kill the command at every system call, fail every one once, and 1,000 random kills
	SHAPER_CHAOS=all $(GO) test -count=1 -timeout 0 -v -run TestLiveFaults ./dataplane/kernel/internal/chaos

# Where the time ends while a worker begins, Go calls that a failure: once more.
fuzz: ## every fuzz target for FUZZTIME
	@set -e; log=$$(mktemp); trap 'rm -f $$log' EXIT; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			fuzz() { $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$package; }; \
			if fuzz >$$log 2>&1; then cat $$log; continue; fi; \
			cat $$log; \
			grep -q '^ *context deadline exceeded' $$log || exit 1; \
			if grep -q 'Failing input' $$log; then exit 1; fi; \
			fuzz; \
		done; \
	done

golden: ## hold the program to the reference model, row by row, on all captures
	$(GO) test -count=1 -run 'TestAgainstOracle|TestRandomPolicies' -v ./cmd/shaper

bench: ## ratios of docs/BENCHMARKS.md, those of the kernel as root
	@.ci/packages tcpdump iproute2 iperf3 redis-server valkey-server/bookworm-backports
	$(GO) run ./cmd/shaper/internal/bench -rounds $(ROUNDS)

bench-peers: ## the same, with DPDK's rte_meter beside it
	@.ci/packages libdpdk-dev pkg-config gcc tcpdump iproute2 iperf3 redis-server valkey-server/bookworm-backports
	$(GO) run ./cmd/shaper/internal/bench -peers -rounds $(ROUNDS)

clean: ## remove what was built
	rm -rf bin
