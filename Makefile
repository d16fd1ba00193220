# Development targets. Using shaper needs none of them: go build ./cmd/shaper.

GO       ?= go
FUZZTIME ?= 10s
ROUNDS   ?= 31
PKG      ?= ./meter
PREFIX   ?= /usr/local
LDFLAGS  ?= -s -w

# One static binary, the same on each machine. Its version is that of the commit.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'

.PHONY: help setup build man size install generate third-party pictures fmt lint test test-386 apidiff race vm chaos fuzz mutants golden bench bench-peers clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that tests use (needs root)
	@.ci/packages chromium iproute2 clang-14 llvm-14 libbpf-dev redis-server valkey-server/bookworm-backports spin gcc

build: ## build bin/shaper
	$(BUILD) -o bin/shaper ./cmd/shaper

bin/shaper:
	$(BUILD) -o $@ ./cmd/shaper

man: bin/man ## write man pages to bin/man, and completions of shells to bin/completions

bin/man: bin/shaper
	rm -rf bin/man bin/completions
	bin/shaper man bin/man
	mkdir -p bin/completions
	bin/shaper completion bash >bin/completions/shaper
	bin/shaper completion zsh >bin/completions/_shaper
	bin/shaper completion fish >bin/completions/shaper.fish

# Names of methods that a program looks up at run time, as text/template and net/rpc do,
# keep the linker from dropping unused methods: 8 MB.
size: ## fail if the stripped binary is above 17 MB
	@set -e; out=$$(mktemp); trap 'rm -f $$out' EXIT; \
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $$out ./cmd/shaper; \
	size=$$(stat -c %s $$out); echo "$$size bytes"; test $$size -le 17000000

install: bin/man ## install bin/shaper, its man pages, completions and systemd unit below PREFIX, in DESTDIR
	install -D bin/shaper $(DESTDIR)$(PREFIX)/bin/shaper
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 bin/man/*.1
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/bash-completion/completions bin/completions/shaper
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions bin/completions/_shaper
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d bin/completions/shaper.fish
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/shaper LICENSE THIRD_PARTY
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/local/|$(PREFIX)/|' docs/shaper@.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/shaper@.service

generate: ## make the generated files again: the eBPF objects, the test captures
	@.ci/packages clang-14 llvm-14 libbpf-dev
	$(GO) generate ./bpf
	$(GO) run ./dataplane/replay/internal/gencaps -o testdata/pcaps

third-party: ## write THIRD_PARTY again: the licenses of all that the binary contains
	$(GO) run ./cmd/shaper/internal/thirdparty -o THIRD_PARTY ./cmd/shaper uPlot=cmd/shaper/internal/report/uplot

# The docs show them; make test fails if compare.svg is not what the command draws now.
pictures: ## draw the pictures of the docs again
	@.ci/packages chromium
	$(GO) run ./cmd/shaper compare testdata/pcaps/border.pcap --rate 800kbit --picture docs/compare.svg
	@dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; \
	$(GO) run ./cmd/shaper replay testdata/pcaps/voice-bulk.pcapng --policy docs/customer.yaml --report $$dir/report.html && \
	$(GO) run ./cmd/shaper/internal/screenshot -from 'section:has([data-chart=offered])' -to '[data-chart=meter][data-index="0"]' $$dir/report.html docs/report.png

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

test-386: ## tests of the packages to embed, on a 32-bit platform
	GOARCH=386 CGO_ENABLED=0 $(GO) test -short ./marker ./meter ./queue ./dataplane ./dataplane/replay

apidiff: ## print how the API differs from the last tagged version
	@.ci/apidiff

# Left out is what runs the command, which is built without it, and what has one
# goroutine at length: comparisons with a model, loading programs, qdiscs.
race: ## all tests under the race detector that it could find something in
	$(GO) test -race -skip '^Test(Live|Docs|AgainstOracle|LongRun|Random|Misses|OneTruth|Spray|FarStamps|Budget(OneTruth|Change)|Lease(OneTruth|Bound)|Why(Against|Random)|Queue(Inherits|Rows|Wraps)|Loads|ManyClasses|Qdisc|IFB|Spin)' ./...

# What 6.12 has that the kernel at hand may lack, and 6.1 lacks, is fq and qdiscs beside TCX.
vm: ## the kernel plane's tests on Debian's 6.1 kernel, in qemu, and those of queues on 6.12
	.ci/vm -k '6.1,6.12=Loads|Truth|Queue|Qdisc|IFB|NoTCX' ./dataplane/kernel ./dataplane/kernel/internal/qdisc ./cmd/shaper/internal/livetest ./dataplane/nettest

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

# It takes an hour and more, and works on a copy of the last commit without the packages
# below PKG. Mutants that time out loop or block, and count as killed. Those that LIVED need
# a test or a reason. Go counts no coverage of case expressions, so gremlins tries none there.
mutants: ## change the code of PKG in small ways, and list the changes that no test notices
	@set -e; dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; git archive HEAD | tar -x -C $$dir; cd $$dir; \
		find $(PKG) -mindepth 1 -maxdepth 1 -type d ! -name testdata -exec rm -rf {} +; \
		GOFLAGS=-count=1 nice -n 19 $(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash \
			--workers 1 --test-cpu 1 --timeout-coefficient 4 -S lct $(PKG)

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
