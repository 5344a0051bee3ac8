# Each target but `run` is one call of `cargo xtask`; `cargo xtask --help` lists their options.
.PHONY: run test check sim soak fuzz book release e2e bench bench-peers bench-files bench-s000 bench-layouts bench-services cc

run: cc
	@./run.sh

test: cc
	@cargo xtask test

check: cc
	@cargo xtask check $(if $(SINCE),--since $(SINCE))

sim: cc
	@cargo xtask sim $(if $(SEED),--seed $(SEED)) $(if $(RECOVERIES),--recoveries $(RECOVERIES)) $(if $(SCENARIOS),--scenarios $(SCENARIOS)) $(if $(SEEDS),--seeds $(SEEDS))

soak: cc
	@cargo xtask soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(REPORT),--report)

fuzz: cc
	@cargo xtask fuzz $(TARGET) $(if $(SECONDS),--seconds $(SECONDS))

# Builds the documentation as a book: target/book/index.html
book: cc
	@cargo xtask book

# The program as it ships, with its debug information in a file of its own: target/release-files
release: cc
	@cargo xtask release

e2e: cc
	@cargo xtask e2e $(FILTER) $(if $(REPEAT),--repeat $(REPEAT))

bench: cc
	@cargo xtask bench-peers --quick

bench-peers: cc
	@cargo xtask bench-peers --out docs/performance.md
	@cargo xtask bench-iscsi --out docs/performance.md

bench-files: cc
	@cargo xtask bench-files --out docs/performance.md

bench-s000: cc
	@cargo xtask bench-s000

bench-layouts: cc
	@cargo xtask bench-layouts --out docs/performance.md

bench-services: cc
	@cargo xtask bench-services --out docs/performance.md

# cargo cannot build even xtask without a linker, so this one check cannot live there.
cc:
	@command -v cc >/dev/null || apt-get install -qqy gcc libc6-dev || sudo -n apt-get install -qqy gcc libc6-dev || { echo "missing packages: gcc libc6-dev (as root: apt-get install gcc libc6-dev)" >&2; exit 1; }
