# Development targets. Using shaper needs none of them: go build ./cmd/shaper.

GO       ?= go
FUZZTIME ?= 10s
ROUNDS   ?= 7
PKG      ?= ./meter
PREFIX   ?= /usr/local
LDFLAGS  ?= -s -w

# One static binary, the same on each machine, without HTTP/2, which needs TLS. Its version is that of
# the commit. Tests are built with the same flags, so packages are compiled once for both.
flags := -trimpath -tags=nethttpomithttp2
export CGO_ENABLED = 0
export GOFLAGS := $(flags) $(filter-out $(flags),$(GOFLAGS))
BUILD = $(GO) build -ldflags '$(LDFLAGS)'

# Benchmarks against other programs are a module of their own: nobody else needs what they require.
BENCH := cmd/shaper/internal/bench

.PHONY: help setup build man size install binaries deb image release test-deb generate third-party pictures fmt lint test live deep test-386 cross cross-sample apidiff race race-sample vm vm-sample kernels chaos chaos-sample fuzz fuzz-sample mutants golden bin/bench bench bench-quick gate clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that tests use (needs root)
	@.ci/packages chromium curl iproute2 clang-14 llvm-14 libbpf-dev redis-server valkey-server spin gcc tcpdump tshark nftables \
		jq haproxy dnsmasq-base udhcpc wireguard-tools wireguard-go freeradius freeradius-utils \
		prometheus skopeo umoci crun

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

# If a package looks up methods by name at run time, as text/template and net/rpc do, the
# linker cannot drop unused methods, and the binary is 8 MB larger.
size: ## fail if the stripped binary is above 23 MB
	@set -e; out=$$(mktemp); trap 'rm -f $$out' EXIT; \
	$(GO) build -ldflags '-s -w' -o $$out ./cmd/shaper; \
	size=$$(stat -c %s $$out); echo "$$size bytes"; test $$size -le 23000000

# BINARY and DESTDIR are for packages. The files here are also those of the .deb and of the archive.
BINARY     ?= bin/shaper
SYSCONFDIR ?= /etc
share = $(DESTDIR)$(PREFIX)/share
doc = $(share)/doc/shaper
# The docs keep their paths, so that links work, and commands in a copy of them.
documents = docs testdata/pcaps -type f ! -path 'docs/etc/*' ! -name '*.service' ! -name docs.go
zsh = $(share)/zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
prefixed = sed 's|/usr/local/|$(PREFIX)/|g'

install: bin/man ## install the command, man pages, completions, docs, units and /etc/shaper, in DESTDIR
	install -D $(BINARY) $(DESTDIR)$(PREFIX)/bin/shaper
	for page in bin/man/*; do install -D -m 644 -t $(share)/man/man$${page##*.} $$page || exit; done
	install -D -m 644 -t $(share)/bash-completion/completions bin/completions/shaper
	install -D -m 644 -t $(zsh) bin/completions/_shaper
	install -D -m 644 -t $(share)/fish/vendor_completions.d bin/completions/shaper.fish
	install -D -m 644 -t $(doc) LICENSE THIRD_PARTY CHANGELOG.md README.md
	find $(documents) -perm -u+x -exec install -D {} $(doc)/{} \;
	find $(documents) ! -perm -u+x -exec install -D -m 644 {} $(doc)/{} \;
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(SYSCONFDIR)/shaper
	for unit in shaper@.service shaper.service; do \
		$(prefixed) docs/$$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit; done
	test -e $(DESTDIR)$(SYSCONFDIR)/shaper/shaper.yaml || \
		$(prefixed) docs/etc/shaper.yaml >$(DESTDIR)$(SYSCONFDIR)/shaper/shaper.yaml

# Packages need the binaries of both architectures, and man pages of the same commit.
RELEASE = $(GO) run ./cmd/shaper/internal/release
binaries:
	for arch in amd64 arm64; do GOOS=linux GOARCH=$$arch $(BUILD) -o bin/$$arch/shaper ./cmd/shaper || exit; done
	$(BUILD) -o bin/shaper ./cmd/shaper
	rm -rf bin/man && $(MAKE) bin/man

deb: binaries ## write dist/shaper_*.deb for amd64 and arm64
	$(RELEASE) deb

image: binaries ## write dist/shaper_*_oci.tar, an OCI image for amd64 and arm64
	$(RELEASE) image

release: ## write all files of release VERSION=x.y.z to dist, without publishing anything; CHECK=1 runs .ci/run
	$(RELEASE) check $(if $(CHECK),-run) $(VERSION)
	$(MAKE) binaries
	$(RELEASE) release $(VERSION)

test-deb: ## install, upgrade under traffic and remove the .deb in a Debian with systemd; as root
	$(BUILD) -o bin/$$($(GO) env GOARCH)/shaper ./cmd/shaper
	$(MAKE) bin/man
	.ci/deb-test

generate: ## make the generated files again: the eBPF objects, the test captures
	@.ci/packages clang-14 llvm-14 libbpf-dev
	$(GO) generate ./bpf
	$(GO) run ./dataplane/replay/internal/gencaps -o testdata/pcaps

third-party: ## write THIRD_PARTY again: the licenses of all code in the binary
	$(GO) run ./cmd/shaper/internal/thirdparty -o THIRD_PARTY ./cmd/shaper uPlot=cmd/shaper/internal/report/uplot

# make test fails if compare.svg or a picture of a recipe differs from what is drawn.
pictures: ## draw the pictures of the docs again
	@.ci/packages chromium
	$(GO) run ./cmd/shaper compare testdata/pcaps/border.pcap --rate 800kbit --picture docs/compare.svg
	SHAPER_PICTURES=1 $(GO) test -count=1 -run 'TestRecipe(Burst)?Pictures?$$' ./cmd/shaper
	@dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; \
	$(GO) run ./cmd/shaper replay testdata/pcaps/voice-bulk.pcapng --policy docs/customer.yaml --report $$dir/report.html && \
	$(GO) run ./cmd/shaper/internal/screenshot -from 'section:has([data-chart=offered])' -to '[data-chart=class][data-index="2"]' $$dir/report.html docs/report.png

fmt: ## format the code
	$(GO) tool gofumpt -w .

lint: ## gofumpt, go vet, staticcheck, go mod tidy
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted, make fmt: $$out"; exit 1; fi
	@set -e; staticcheck=$$($(GO) tool -n staticcheck); for module in . $(BENCH); do (set -x; cd $$module; \
		$(GO) vet ./...; \
		$$staticcheck ./...; \
		$(GO) mod tidy -diff); done

# gotest prints each package when it ends, and what is running. Live tests mostly wait, so many of
# them run at once. TALLY is a file to which it adds the numbers of tests.
GOTEST = $(CURDIR)/bin/gotest $(if $(TALLY),-tally $(TALLY)) -timeout 2h

bin/gotest: $(wildcard cmd/shaper/internal/gotest/*.go)
	@.ci/beat "building bin/gotest" $(GO) build -o $@ ./cmd/shaper/internal/gotest

# Results are not cached, because tests build the command, which the cache does not know. make lint
# vets.
test: setup bin/gotest ## all tests that pass at any load of the machine
	@cd $(BENCH) && $(GOTEST) -count=1 ./...
	@$(GOTEST) -count=1 -vet=off -p $$((2 * $$(nproc))) -parallel $$((4 * $$(nproc))) -skip '^Test(Quiet|Measure)' ./...

# Live tests mostly wait, so more run at once than there are CPUs.
live: setup bin/gotest ## tests of rates, delays and durations of live traffic; they need a quiet machine
	@$(GOTEST) -p 1 -count=1 -vet=off -parallel $$((2 * $$(nproc))) -run '^TestQuiet' $$(grep -rl --include='*_test.go' 'nettest.Quiet' . | xargs -n 1 dirname | sort -u)

deep: ## all that .ci/run checks a part of: by hand before a release, or each night; hours
	SHAPER_DEEP=1 $(MAKE) test
	$(MAKE) race vm chaos-sample test-386 cross fuzz test-deb

test-386: ## tests of the packages that run on every system, on a 32-bit platform
	@.ci/cross 386

cross: ## build the command for other systems, and run some tests on 32-bit ARM in qemu
	@.ci/packages qemu-user-static
	@.ci/cross
	@.ci/cross arm

cross-sample: ## build for macOS and Windows, and run the tests of arithmetic on a 32-bit platform
	@.ci/cross sample

apidiff: ## print how the API differs from the last tagged version
	@.ci/apidiff

race: ## tests with several goroutines, under the race detector
	@.ci/race

race-sample: ## those of packages that changed, and of some others
	@.ci/race sample

# 6.12 has fq, and qdiscs beside TCX; the running kernel may lack fq, and 6.1 lacks TCX. The
# skipped tests are of code that no kernel changes: parsing, and arithmetic of the program.
VM = ./dataplane/kernel ./dataplane/kernel/walk ./dataplane/kernel/internal/image ./dataplane/kernel/internal/qdisc ./dataplane/kernel/internal/rundir \
	./dataplane/kernel/hostbudget ./dataplane/kernel/watch ./cmd/shaper/internal/livetest ./cmd/shaper/internal/routers/tc
vm: ## the kernel plane's tests in qemu, on Debian's kernel 6.1, and the tests of queues on 6.12
	.ci/vm -k '6.1,6.12=Loads|Truth|Queue|Qdisc|IFB|NoTCX|TCLive' -skip '^Test(OddHeaders|FarHeaders|Stack|Segments|Keys|Expiry|DryRun|Levels|Convert|WindowConvert|TCRandom)$$' $(VM) ./dataplane/nettest

# On 6.1 those that depend on the verifier, and on hooks before TCX; on 6.12 those that need fq.
vm-sample: ## the tests that may pass here, but not on one of these kernels
	.ci/vm -k '6.1=^Test(Loads|Limits|ManyClasses|OneTruth|BudgetOneTruth|Tunnels|IFB(Clsact|Refused|Undone)|QdiscRestore|LiveNoTCX|LiveGenericXDP|LiveForeignXDP|LiveWithoutBpffs|LiveRecipeWireGuard|TCLiveScripts)$$,6.12=^Test(Loads|Queue(Departures|Leaves)|Qdisc(Restore|PacerChange)|QuietQdisc(Departure|Fair)|LiveQueueHorizon|LiveCustomerQueuesBoth|Programs.*)$$' $(VM)

# One VM after the other, and then the running kernel; as root, half an hour. KERNELS names some, such as 6.1.
kernels: ## test the features on several kernels, and write the table in docs/KERNELS.md
	.ci/kernels $(KERNELS)

chaos-sample: ## make chaos with a fixed sample of 64 faults; that of make test has 16
	SHAPER_CHAOS=more $(GO) test -count=1 -timeout 1h -run TestLiveFaults ./dataplane/kernel/internal/chaos

# It takes hours. With SHAPER_CHAOS_BUDGET=20m it runs a part, chosen by the seed.
chaos: ## kill the command at each system call, fail each call once, and kill it 1,000 times at random
	SHAPER_CHAOS=all $(GO) test -count=1 -timeout 0 -v -run TestLiveFaults ./dataplane/kernel/internal/chaos

fuzz: ## run each fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

fuzz-sample: ## run the fuzz targets of changed packages for a second each
	@packages=$$(.ci/changed -own) && { [ -z "$$packages" ] || WORKERS=1 .ci/fuzz 1s $$packages; }

# It takes more than an hour, and uses a copy of the last commit without the packages below
# PKG. Mutants that time out loop or block, and count as killed. Each one that LIVED needs a
# test or a reason. Go counts no coverage of case expressions, so gremlins skips those.
mutants: ## make small changes to the code of PKG, and list those that no test detects
	@set -e; dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; git archive HEAD | tar -x -C $$dir; cd $$dir; \
		find $(PKG) -mindepth 1 -maxdepth 1 -type d ! -name testdata -exec rm -rf {} +; \
		GOFLAGS=-count=1 nice -n 19 $(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash \
			--workers 1 --test-cpu 1 --timeout-coefficient 4 -S lct $(PKG)

golden: export SHAPER_DEEP = 1
golden: ## compare the program with the reference model, row by row, on all captures
	$(GO) test -count=1 -timeout 2h -run 'TestAgainstOracle|TestRandomPolicies' -v ./cmd/shaper

bin/bench:
	@cd $(BENCH) && $(GO) build -o $(CURDIR)/$@ .

bench: bin/bench ## measure everything and write docs/BENCHMARKS.md and its picture; the kernel's figures need root
	@.ci/packages libdpdk-dev pkg-config gcc tcpdump iproute2 iperf3 iputils-ping redis-server valkey-server
	bin/bench -peers -rounds $(ROUNDS) -write docs

bench-quick: ## compare the benchmarks with those of the last tagged version, or of BASE
	@.ci/bench-quick

gate: ## fail if the command costs 5 % more than that of the last tagged version, or of BASE
	@.ci/gate

clean: ## remove bin and dist
	rm -rf bin dist
