# Everything a newcomer needs: each target sets up what it needs first.
.PHONY: build setup demo demo-ethernet test lint deb bench bench-papers lab-setup fuzz interop

build: setup
	cargo build --release --package longhaul

setup:
	@scripts/setup

demo: build
	@scripts/demo

# A disk over raw Ethernet, between two network namespaces.
demo-ethernet: build
	@scripts/demo-ethernet

test: setup
	@scripts/test

lint: setup
	@scripts/lint

# Longhaul beside its peers; takes minutes and wants an idle machine.
bench: build lab-setup
	@scripts/bench

# The measurements of the papers, with theirs and ours side by side; takes hours.
bench-papers: build lab-setup
	@scripts/bench-papers

# Peers for the benchmarks: tunnels and servers that people use today.
lab-setup: setup
	@scripts/lab-setup

# A longer search for inputs that break a law: make fuzz SECONDS_EACH=600
fuzz: setup
	@scripts/fuzz $(or $(SECONDS_EACH),60)

# The Linux kernel and QEMU as strangers, in virtual machines: make interop SCRIPTS="logins restart"
interop: setup
	@interop/all $(SCRIPTS)

# A Debian package of the release build, in target/. `packaging/test-deb` tries one; part of make test.
deb: build
	@packaging/build-deb
