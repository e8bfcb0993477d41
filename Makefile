# `make help` lists the targets. Needs python3 (with pip and venv) and make, nothing else.

PYTHON      ?= python3
VENV        ?= .venv
PYTEST_ARGS ?= -n 2
BENCH_ARGS  ?=
FAULTS_ARGS ?=
FUZZ_ARGS   ?=

BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# One stamp for the package with its dependencies, one for the tools of a developer on top, one for make engines.
RUN := $(VENV)/.stamp-run
DEV := $(VENV)/.stamp-dev
ENG := $(VENV)/.stamp-engines
BEN := $(VENV)/.stamp-bench

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv test unit lint types format demo bench contracts mutate engines faults fuzz docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(DEV) ## Create the virtual environment (done once; again when a dependency changes)

$(RUN): pyproject.toml constraints.txt
	@echo "== installing ckptmorph into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt
	@echo "== installing ckptmorph and the development tools into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[dev]'
	@touch $(RUN) $@

$(ENG): $(RUN)
	@$(PIP) -e '.[engines]'
	@touch $@

$(BEN): $(RUN)
	@$(PIP) -e '.[bench]'
	@touch $@

test: lint types unit ## Everything that must hold before a change lands: lint, types, all tests

unit: $(DEV) ## Only the tests (PYTEST_ARGS="-k name" narrows them)
	@echo "== pytest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEV) ## Rules, formatting and the direction of imports
	@echo "== ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "not formatted: run make format"; exit 1; }
	@echo "== import-linter"
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

types: $(DEV) ## Types, strictly
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary ckptmorph $(wildcard tools)

format: $(DEV) ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

demo: $(RUN) ## Install what is needed and show a conversion from end to end
	@PATH="$(BIN):$$PATH" bash scripts/demo.sh

bench: $(BEN) ## Measure time and memory against cp, and write benchmarks/RESULTS.md (BENCH_ARGS="rename --size 0.5"; 20 GB of disk)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

contracts: $(DEV) ## Compare a contract with an unpacked engine: make contracts ENGINE=name PACKAGE=dir [RELEASE=x] [ALGORITHM=y]
	@$(BIN)/python -m tools.contracts $(ENGINE) $(PACKAGE) $(if $(RELEASE),--release $(RELEASE)) $(if $(ALGORITHM),--algorithm $(ALGORITHM))

mutate: $(DEV) ## Change every rule of every contract in memory and list what no test notices: make mutate [FILES=schema]
	@$(BIN)/python -m tools.mutate $(FILES)

engines: $(ENG) ## Show drafters to real engines on this CPU and compare: make engines [AT=name@release] [SAMPLE=N] [STORED=1]
	@$(BIN)/python -m tests.engines $(AT) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(STORED),--stored)

faults: $(DEV) ## Break conversions off at every system call and count what is lost (FAULTS_ARGS="--quick overwrite")
	@$(BIN)/python -m tests.faults $(FAULTS_ARGS)

fuzz: $(DEV) ## Feed the readers with input that a fuzzer makes up (FUZZ_ARGS="--seconds 600 header"); Linux only
	@$(PIP) -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

docs: $(DEV) ## Regenerate what is generated: JSON Schema, CLI reference, support matrix, output in the README
	@$(BIN)/python -m tools.generate
	@$(BIN)/python -m tools.tour

clean: ## Remove the virtual environment, builds and caches
	@rm -rf .venv .venvs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
