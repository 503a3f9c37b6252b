# Every chore of the project; `make` alone lists them. Needs bash and Python 3.11 or newer.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo init chaos test test-docker e2e e2e-embedded check format schemas lock ci clean

VENV := .venv
BIN := $(VENV)/bin
UV ?= $(shell command -v uv)

# The first Python that is new enough and can make a virtual environment. Those of distributions, and others that were
# built with optimizations, go first: what pyenv compiles is without, and takes a tenth more CPU (docs/performance.md).
PYTHON ?= $(shell for build in optimized any; do \
	for python in python3.12 python3.11 python3 /usr/bin/python3.12 /usr/bin/python3.11 /usr/bin/python3 \
	python3.14 python3.13; do \
	"$$python" -c 'import ensurepip, sys, sysconfig, venv; \
	built = sys.base_prefix == "/usr" or "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")); \
	sys.exit(sys.version_info < (3, 11) or "optimized" in sys.argv and not built)' $$build 2>/dev/null \
	&& echo "$$python" && exit; done; done)

# Processes of tests, which wait more than they work: two more than there are CPUs, each with servers of its own.
JOBS ?= $(shell cpus=$$(getconf _NPROCESSORS_ONLN); echo $$((cpus < 5 ? cpus + 2 : 6)))

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runs ## run the whole system on this machine: no Docker, no key
	@$(BIN)/procession demo

init: $(VENV)/.runs ## write keys and credentials for compose.yaml
	@$(BIN)/procession init

e2e: $(VENV)/.develops ## the stack of compose.yaml in containers: scale, kill, restart, upgrade, restore
	@$(BIN)/python -m tests.e2e.compose

e2e-embedded: $(VENV)/.develops ## the same under load on processes, where Docker does not run
	@$(BIN)/python -m tests.e2e.processes

chaos: $(VENV)/.develops ## kill, stop and cut off everything under load: RUNS=2000 SEED=1
	@$(BIN)/python -m tests.chaos --runs $(or $(RUNS),2000) --seed $(or $(SEED),1)

test: $(VENV)/.develops ## run the tests
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-docker: $(VENV)/.develops ## integration tests that restart servers and use all of them, on containers
	@$(BIN)/python -m tests.e2e.engine
	@PROCESSION_TEST_SERVERS=containers $(BIN)/python -m pytest $(addprefix tests/integration/test_, \
		$(addsuffix .py, servers runs restarts silence memory dead tls))

check: $(VENV)/.develops ## formatting, lint, types, import rules
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.develops ## format and mend what can be mended
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

schemas: $(VENV)/.develops ## write what is generated from the models: JSON Schemas, AsyncAPI, docs/reference
	@$(BIN)/python -m tests.contract.write_golden

ci: ## what continuous integration runs
	@.ci/run

lock: ## write requirements/*.lock from pyproject.toml (needs uv; delete the files first to upgrade)
	@$(if $(UV),,echo "make lock needs uv: see https://docs.astral.sh/uv" >&2; exit 1)
	@$(COMPILE) --group build -o requirements/all.lock
	@$(COMPILE) --group dev -c requirements/all.lock -o requirements/dev.lock

clean: ## remove the environment and every cache
	@rm -rf $(VENV) build dist .coverage* .hypothesis .*_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml

# --- the environment: a stamp per lock, so that only a change installs anything ---------------

$(BIN)/python:
	@echo "[1/3] virtual environment"
	@$(if $(PYTHON),,echo "Procession needs Python 3.11 or newer with venv and pip. Debian, Ubuntu: apt-get" \
		"install python3 python3-venv. Elsewhere: PYTHON=/path/to/python3.12 make ..." >&2; exit 1)
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runs: requirements/all.lock pyproject.toml | $(BIN)/python
	$(call install,$<)
	@touch $@

$(VENV)/.develops: requirements/dev.lock pyproject.toml | $(BIN)/python
	$(call install,$<)
	@touch $@ $(VENV)/.runs

define install
@echo "[2/3] $$(grep -c '^[a-z].*==' $(1)) locked packages (first time: about a minute)"
@$(INSTALL) --require-hashes -r $(1) $(REPORT)
@echo "[3/3] procession itself"
@$(INSTALL) --no-deps --no-build-isolation -e . $(REPORT)
endef

ifeq ($(UV),)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-input
else
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
endif

# Of the installer's pages only a counter, on a terminal, and errors, without the names of hosts.
REPORT = 2>&1 | awk -v terminal=$$([ -t 2 ] && echo 1 || echo 0) -v out=/dev/stderr ' \
	terminal && /^Collecting/ { printf "\r      %d fetched", ++count > out; fflush(out) } \
	count && /^Installing/ { printf ", installing" > out; fflush(out) } \
	tolower($$0) ~ /^[^a-z]*error/ { failed = 1 } \
	failed { gsub(/:\/\/[^\/ ]+/, "://..."); print > out } \
	END { if (count) print "" > out }'
