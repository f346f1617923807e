# The workshop. Every target works on a machine that has only python3 (3.11 or newer), make and git.
#   make demo    install what running needs, then check this repo's own agent: `evalfleet eval`
#   make test    the tests that need no service of this machine (Valkey and SQLite are embedded)
#   make e2e     whole commands as processes, kills and signals included: some minutes
#   make chaos   twenty seeds of faults on a whole fleet, and hosts that are cut off: half an hour; needs Postgres
#   make lint    ruff (rules and format) and the import rules of docs/decisions
#   make types   mypy, strict, over the packages and the tests
#   make strangers   an environment for programs that use our server and know nothing of us: their tests need it
#   make mutation   would the tests notice if what decides verdicts decided otherwise? some 1,280 mutants, ten minutes
#   make fuzz    the property tests and the readers of cases with a fresh seed, then schemathesis against the server:
#                15 minutes for the readers, for SQLite and for Postgres each
#   make bench   the benchmark: a table of wall time and CPU
#   make smoke   build the wheel, install it in a fresh environment, run it there
#   make lock    write the lock files anew from pyproject.toml (LOCK_FLAGS=--upgrade: newest versions)
#   make clean   remove what these targets made

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_FLAGS ?= -n auto --maxprocesses 8 --dist worksteal
UV_VERSION := 0.13.9
STRANGERS := $(VENV)-strangers
FUZZ_SECONDS ?= 900
FUZZ_SEED ?=
LOCK_FLAGS ?=
COMPILE = --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --quiet $(LOCK_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help demo test e2e chaos lint types strangers mutation fuzz bench smoke lock clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

# --- the environment: made when it is absent, brought up to date when a lock changed -----------------------------
# A stamp is written only after its step succeeded, so a half-made environment is made again.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "evalfleet needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),demo)" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runs: $(VENV)/.made requirements.lock requirements-build.lock pyproject.toml
	$(PIP) install --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.works: $(VENV)/.runs requirements-dev.lock
	$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

# What strangers depend on decides nothing of ours, and ours nothing of theirs.
$(STRANGERS)/.made: $(VENV)/.made requirements-strangers.lock
	$(BIN)/python -m venv --clear $(STRANGERS)
	$(STRANGERS)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements-strangers.lock
	@touch $@

# --- the targets -------------------------------------------------------------------------------------------------

demo: $(VENV)/.runs
	$(BIN)/evalfleet eval

# The same tests twice: property tests have their examples by rule (tests/conftest.py), sets their order.
test: $(VENV)/.works
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -m "not integration and not e2e" $(PYTEST_FLAGS)

e2e: $(VENV)/.works
	$(BIN)/python -m pytest -m "e2e and not integration" $(PYTEST_FLAGS)

CHAOS_SEEDS ?= 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20

chaos: $(VENV)/.works
	EVALFLEET_CHAOS_SEEDS=$(CHAOS_SEEDS) EVALFLEET_CHAOS_CUT=60 $(BIN)/python -m pytest -m chaos -s tests/chaos

lint: $(VENV)/.works
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.works
	$(BIN)/mypy

strangers: $(STRANGERS)/.made

fuzz: $(VENV)/.works $(STRANGERS)/.made
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(addprefix --seed ,$(FUZZ_SEED)) -- $(PYTEST_FLAGS)
	EVALFLEET_TEST_STRANGERS_PYTHON=$(abspath $(STRANGERS))/bin/python EVALFLEET_TEST_FUZZ_SECONDS=$(FUZZ_SECONDS) \
	  $(BIN)/python -m pytest -s -m integration tests/integration/test_schemathesis.py

MUTATION_JOBS ?= 2

mutation: $(VENV)/.works
	$(BIN)/python -m tests.mutation --jobs $(MUTATION_JOBS)

bench: $(VENV)/.works
	$(BIN)/python -m benchmarks

# An editable install hides a file that the wheel forgets: so the wheel itself is installed and run, far from here.
smoke: $(VENV)/.runs
	@set -eu; \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	echo "smoke: building the wheel"; \
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir "$$folder/wheel" .; \
	echo "smoke: installing it in a fresh environment"; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements.lock; \
	"$$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps "$$folder"/wheel/*.whl; \
	mkdir "$$folder/tree"; cd "$$folder/tree"; \
	echo "smoke: evalfleet init, evalfleet eval"; \
	"$$folder/venv/bin/evalfleet" init; \
	"$$folder/venv/bin/evalfleet" eval

# uv is needed for this one target only; the version is fixed so that two people get the same files.
build/uv-$(UV_VERSION)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make PYTHON=python3.12 lock" >&2; exit 2; }
	$(PYTHON) -m venv --clear build/uv-$(UV_VERSION)
	build/uv-$(UV_VERSION)/bin/python -m pip --disable-pip-version-check --quiet install uv==$(UV_VERSION)

lock: build/uv-$(UV_VERSION)/bin/uv
	$< pip compile pyproject.toml $(COMPILE) -o requirements.lock > /dev/null
	printf 'hatchling>=1.27\neditables>=0.5\n' | $< pip compile - $(COMPILE) -c requirements.lock -o requirements-build.lock > /dev/null
	$< pip compile pyproject.toml --extra dev $(COMPILE) -c requirements.lock -c requirements-build.lock \
	  -o requirements-dev.lock > /dev/null
	printf 'splox==0.5.4\nschemathesis==4.32.5\n' | $< pip compile - $(COMPILE) -o requirements-strangers.lock > /dev/null

clean:
	rm -rf $(VENV) $(STRANGERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
