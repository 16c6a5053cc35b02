# One command for each thing; `make help` lists them. Everything a target needs is brought once, into ignored folders.

PYTHON ?= python3
CONFIG ?=
STATE ?= .lab/state.json
SEED ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
SPARK_READY := $(VENV)/.spark-ready
EXTRAS := -e '.[lab,dev,infra,spark]'
WITH_SPARK := -e '.[lab,spark]'
ifneq ($(strip $(KAFKA)),)
export KAFKA # another version of the lab's brokers than its default
else
unexport KAFKA
endif
# uv takes half of pip's time, and comes by pip; pip does it, where only pip has been given an index.
FETCH = $(BIN)/pip install -q -c constraints.txt uv && { \
  VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install -q --compile-bytecode -c constraints.txt $(1) || \
  $(BIN)/pip install -q -c constraints.txt $(1); }
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The rest of a recipe says every 5 s how long it has taken, and what it has brought into these folders: the caches of uv and
# Maven are the user's, and hold what other projects brought. Ctrl-C ends no job of a shell's background: hence `kill -0`.
EVERY_SECONDS := 5
BROUGHT = du -smc $(VENV) .cache 2>/dev/null | tail -n 1 | cut -f 1
SHOWN = began=$$(date +%s); before=$$($(BROUGHT)); passed() { echo "  $$(($$(date +%s) - began)) s, $$(($$($(BROUGHT)) - before)) MB so far"; }; \
  while sleep $(EVERY_SECONDS) >/dev/null 2>&1 && kill -0 $$$$; do passed; done & shown=$$!; trap 'kill $$shown' EXIT
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the same modules: collecting took 17 s of CPU, not 5

.DEFAULT_GOAL := help
.PHONY: help demo demo-failover lab spark translate test check lint types imports unit packages contracts integration sample soak mutants scale bench backfill-live bench-parts docs frozen lock bundle synth diff diff-guard deploy clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_READY) ## two real clusters, two faults, a group that moves there and back; audits every record (about 90 s)
	@$(BIN)/python -m lab demo

demo-failover: $(SPARK_READY) ## lose a region, fail over, fail back by the two commands; accounts for every record (about 3 minutes)
	@$(BIN)/python -m lab failover

lab: $(DEMO_READY) ## run CONFIG=replication.yaml here until Ctrl-C, and go on at the next start (FRESH=1 starts anew); state in STATE=file.json; BROKERS=1 PARTITIONS=6
	@$(BIN)/python -m lab up --config $(or $(CONFIG),replication.example.yaml) --state $(STATE) --brokers $(or $(BROKERS),1) --partitions $(or $(PARTITIONS),6) $(if $(FRESH),--fresh)

translate: $(DEMO_READY) ## FLOW=a->b TOPIC=t PARTITION=0 OFFSET=1 STATE=file.json: where an offset stands downstream
	@$(BIN)/mirrorless translate '$(FLOW)' '$(TOPIC)' '$(PARTITION)' '$(OFFSET)' --json --lab $(STATE)

spark: $(SPARK_READY) ## bring Spark, which the first job of a lab does by itself

CHECKS := contracts unit packages types lint imports
SERVERS := $(addprefix integration-,1 2 3 4 0) sample
# First those that wait most, for brokers and sessions (a step says its seconds and its CPU at its end): what only takes CPU
# fills two cores beside them, and behind them.
LONGEST := $(addprefix integration-,1 3 4 2) contracts unit packages $(addprefix integration-,0) sample types
EVERYTHING := $(LONGEST) $(filter-out $(LONGEST),$(SERVERS) $(CHECKS))
# The parts keep their calls of AWS in one folder; at their end it shows which recorded call nothing made.
CALLS := MIRRORLESS_TEST_CALLS=$(CURDIR)/.lab/aws-calls
# Scenarios whose claim a cheaper test holds too run in `make integration` alone, and at the end of `make soak`.
CHOSEN = $(if $(WHOLE),,-m 'not soak')
STEPS = MAKE='$(MAKE)' $(BIN)/python -m tests.support.steps

test: ## everything that must pass: `check` and `integration`, five steps at a time; see README.md for how long; FOR=verify|cli|… what a package's tests are
integration: ## all tests on real Kafka, DynamoDB Local and Lambda's runtime client, a sample of the soak (KAFKA=3.9.1 for another version)
ifneq ($(strip $(FOR)),)
test: $(READY)
	@files=$$($(BIN)/python -m tests.support.subject $(FOR)) && $(BIN)/pytest -q $(CHOSEN) $$files
else
test integration: $(READY)
	@rm -rf .lab/aws-calls && mkdir -p .lab/aws-calls
	@KEEP_CALLS='$(CALLS)' WHOLE=$(filter integration,$@) $(STEPS) --jobs 5 $(if $(filter test,$@),$(EVERYTHING),$(SERVERS))
	@$(if $(filter integration,$@),$(CALLS) $(BIN)/python -m tests.support.aws_recorder)
endif

check: $(READY) ## the quick part of `make test`: lint, types, imports, unit, contract and template tests
	@$(STEPS) --jobs 3 $(CHECKS) # one of them waits for Node and pip

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

# Two processes and not workers of pytest-xdist, each of which would collect all tests.
TRIES := $(if $(MANY),MIRRORLESS_MANY_TRIES=1) # see tests/support/tries.py
unit: $(READY)
	$(TRIES) $(BIN)/pytest -q --durations 10 tests/unit --ignore tests/unit/infra

packages: $(READY)
	$(BIN)/pytest -q --durations 10 tests/unit/infra

contracts: $(READY)
	$(BIN)/pytest -q --durations 10 tests/infra tests/contract tests/frozen

integration-%: $(READY)
	$(KEEP_CALLS) $(TRIES) $(BIN)/pytest -q --part $* $(CHOSEN) --durations 10 tests/integration

sample: $(READY)
	$(BIN)/python -m lab soak --first $(if $(CHOSEN),3 --count 1,2 --count 2) --records 6500 --fresh --progress .lab/sample.json

soak: $(READY) ## 64 random fault schedules, resumable, and all of `integration`; SEED=n replays one; BROKERS=3 on clusters of three; TRIGGER=mapping|schedule|change|mixed
	@$(BIN)/python -m lab soak $(if $(SEED),--seed $(SEED)) $(if $(TRIGGER),--trigger $(TRIGGER)) $(if $(BROKERS),--brokers $(BROKERS)) \
	  $(if $(TRIGGER)$(BROKERS),--progress soak-progress$(TRIGGER:%=-%)$(BROKERS:%=-brokers-%).json,$(if $(SEED),,--report docs/reference/soak.md))
	@$(if $(SEED)$(TRIGGER)$(BROKERS),,$(MAKE) --no-print-directory integration)

mutants: $(READY) ## change code line by line: which change no test notices; PART=protocol|kafka|journal, MINUTES=60 at most, goes on where it ended
	@$(BIN)/python -c 'import mutmut.configuration' 2>/dev/null || $(BIN)/pip install -q -c constraints.txt -e '.[mutants]'
	@$(BIN)/python -m tests.mutants.run $(if $(PART),--part $(PART)) $(if $(MINUTES),--minutes $(MINUTES))

scale: $(READY) ## what is too large for `make test`; PART=kills|backfill-live|small-backfill|verify|reconcile|rounds|pull-topics|pass-through-memory|upgrade|comparison for one, RESUME=1 goes on; keeps docs/benchmarks/scale-report.json
	@$(BIN)/python -m tests.benchmarks $(or $(PART),--group scale) --report docs/benchmarks/scale-report.json $(if $(RESUME),--resume)

bench: $(READY) ## measure beside real MirrorMaker 2, about an hour; PART=throughput|latency|pull|pass-through|backfill|catch-up|recovery|offset-map for one; BENCH=quick for a few; GB=1 of a backlog of backfill; RESUME=1 goes on
	@$(BIN)/python -m tests.benchmarks.beside_mm2 --profile $(or $(BENCH),full) $(if $(PART),--only $(PART)) $(if $(GB),--gigabytes $(GB)) $(if $(RESUME),--resume) $(if $(KEEP),--keep $(KEEP))

bench-parts: $(READY) ## the forwarder's CPU by stage; a job's copy beside a bare loop; that of whole batches; what lagging groups read again, beside MM2
	@$(BIN)/python -m tests.benchmarks --group parts

backfill-live: $(READY) ## 2,000,000 records of 12 lanes by a job, beside a live mapping; KILLS=2 kills workers, and runs it again; audits all
	@$(BIN)/python -m tests.benchmarks backfill-live kills=$(or $(KILLS),0)

bundle: $(READY) ## build the functions' folders for this machine, arm64 and x86_64; print sizes, hashes and import times
	@$(BIN)/python -m lab.functions.bundles

synth: $(READY) ## make templates of CONFIG=replication.yaml, or of every example, in cdk.out; lint them, list what is made
	@$(BIN)/python -m infra.synth $(CONFIG)

diff: $(READY) ## what deploying CONFIG=replication.yaml would change; STACKS='mirrorless-state-*' for some of it
	@$(BIN)/python -m infra.cdk diff $(STACKS) --context config=$(or $(CONFIG),replication.yaml)

CHANGES := docs/examples/changes

diff-guard: $(READY) ## refuse what would replace a table or a mapping: OLD=… NEW=… folders or files, ACCEPT='ids'; or the examples
ifneq ($(strip $(OLD)$(NEW)),)
	@$(BIN)/python -m infra.guard.diff_guard $(OLD) $(NEW) $(ACCEPT:%=--accept=%)
else
	@$(BIN)/python -m infra.guard.diff_guard $(CHANGES)/before.yaml $(CHANGES)/harmless.yaml
	@$(BIN)/python -m infra.guard.diff_guard $(CHANGES)/before.yaml $(CHANGES)/refused.yaml; test $$? -eq 1
endif

deploy: $(READY) ## deploy CONFIG=replication.yaml in order, after the guard, asking before rights grow (APPROVAL=never in a pipeline); STACKS='…' for some of it, ACCEPT='ids'
	@$(BIN)/python -m infra.deploy $(or $(CONFIG),replication.yaml) $(if $(STACKS),--stacks $(STACKS)) $(if $(ACCEPT),--accept $(ACCEPT)) $(APPROVAL:%=--require-approval=%)

docs: $(READY) ## write the pages that are generated from the code
	@$(BIN)/python -m mirrorless.config
	@$(BIN)/python docs/write_cost_page.py
	@$(BIN)/python docs/write_commands_page.py
	@$(BIN)/python -m docs.write_changes_page

frozen: $(READY) ## write what users see into golden files anew, see tests/frozen; PART=help for one part
	@$(BIN)/python -m tests.frozen $(PART)

lock: $(READY) ## resolve all pinned versions anew
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header \
	  --extra lab --extra dev --extra infra --extra spark --extra mutants pyproject.toml -o constraints.txt
	@for each in functions/requirements functions/requirements-transforms spark/requirements spark/requirements-transforms lab/requirements-runtime; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header --generate-hashes $$each.in -o $$each.txt || exit; done

clean: ## remove everything that make brought or wrote
	rm -rf $(VENV) .cache .bundles .lab cdk.out infra/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# What the lab needs is a quarter of it all; the jars come meanwhile, by Maven. With $(READY), this is there too.
$(DEMO_READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: install python3.11 (Debian) or set PYTHON=/path/to/python"; exit 1; }
	@command -v java >/dev/null || { echo "Java 17 or newer is needed: install openjdk-17-jdk-headless"; exit 1; }
	@command -v mvn >/dev/null || { echo "Maven is needed, to fetch Kafka: install maven"; exit 1; }
	@echo "setting up $(VENV) for the lab, once (15 s to one minute, by network and cores) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Python cannot make virtual environments: install python3-venv"; exit 1; }
	@$(SHOWN); PYTHONPATH=shared:. $(BIN)/python -m lab.servers.artifacts & jars=$$!; \
	$(call FETCH,-e '.[lab]'); made=$$?; wait $$jars && exit $$made
	@touch $@

# A venv that is complete has Spark already; `pip` finds that out in a second.
$(SPARK_READY): $(DEMO_READY)
	@echo "bringing Spark into $(VENV), once (800 MB there; about a minute, by network and cores) ..."
	@$(SHOWN); $(call FETCH,$(WITH_SPARK))
	@touch $@

$(READY): pyproject.toml constraints.txt $(DEMO_READY)
	@echo "completing $(VENV), once (one to two minutes, by network and cores; Spark is 400 MB of it):" \
	  "the CDK, the checks, Spark ..."
	@$(SHOWN); $(call FETCH,$(EXTRAS))
	@touch $(SPARK_READY) $@
