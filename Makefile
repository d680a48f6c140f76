# The everyday jobs. Every target makes the virtual environment it needs by itself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= The function returns
DEMO := dist/tiny-qwen3-q4f16_1/cpu
WORKERS ?= auto
# Workers share the CPUs: threads of BLAS would wait for those of another's.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The first interpreter that is new enough and can make a virtual environment.
# PYTHON=/path/to/python overrules the list.
CANDIDATES := $(or $(PYTHON),python3.12 python3.11 python3.13 python3.14 python3 python)
define FIND_PYTHON
for p in $(CANDIDATES); do \
  if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
  then echo "$$p"; exit 0; fi; \
done; \
echo "error: no Python 3.11 or newer with the venv module among: $(CANDIDATES)" >&2; \
echo " hint: install one (Debian: apt-get install python3-venv), or make PYTHON=/path/to/python" >&2; \
exit 1
endef

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.base ## build the shipped example into dist/ and let it write some text (PROMPT="...")
	$(BIN)/mlc-compile build demo --target cpu -o dist
	@printf 'prompt: %s\n' "$(PROMPT)"
	$(BIN)/mlc-compile run $(DEMO) --prompt "$(PROMPT)" --max-tokens 64 --temperature 0
	@echo "go on: . $(BIN)/activate, then mlc-compile --help"

.PHONY: test
test: $(VENV)/.dev ## run the tests, without the slow ones
	$(PYTEST) -m "not slow"

.PHONY: test-slow
test-slow: $(VENV)/.dev ## run the slow tests
	$(PYTEST) -m slow

.PHONY: test-all
test-all: $(VENV)/.dev ## run every test
	$(PYTEST)

.PHONY: lint
lint: $(VENV)/.dev ## format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: check
check: lint test ## lint and test: what must pass before a commit

.PHONY: bench
bench: $(VENV)/.base ## measure the shipped example on this machine: dist/bench.{csv,json}
	$(BIN)/mlc-compile build demo --target cpu -o dist
	MLC_COMPILE=$(BIN)/mlc-compile scripts/bench_device.sh -o dist/bench $(DEMO)

.PHONY: wheel
wheel: $(VENV)/.dev ## build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist .

.PHONY: clean
clean: ## remove what these targets made, the environment too; your builds in dist/ stay
	rm -rf dist/tiny-qwen3-* dist/bench.csv dist/bench.json dist/*.whl
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## clean, and remove every model built in dist/ as well
	rm -rf dist

$(VENV)/bin/python:
	@echo "creating $(VENV) (about 1.5 GB, a minute or two)"
	@python="$$($(FIND_PYTHON))"; "$$python" -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.base
