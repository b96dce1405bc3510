# Everything runs in .venv, which is set up once, and again when the dependencies change.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
READY := .venv/.ready
SETUP_LOG := .venv/setup.log

# Test processes at once: most tests wait for processes of their own, so there may be more than cores.
WORKERS ?= 4

BENCHMARKS ?= mcp_start launch training checkpoints

# The first of these that starts, is new enough and can make virtual environments; PYTHON=... overrides.
CANDIDATES := python3.11 /usr/bin/python3.11 python3.12 python3.13 python3.14 python3
PROBE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))

.PHONY: help demo test check format bench soak clean

help:
	@echo "make demo    run the whole procedure on real data (ASK=1: you are the human who approves)"
	@echo "make test    run the tests (COV=1: with coverage, subprocesses included)"
	@echo "make check   formatting, lint, types, layers"
	@echo "make format  put the formatting right"
	@echo "make bench   measure against bare torch, torchrun, accelerate and a bare server"
	@echo "make soak    the large counts; takes long"

$(READY): pyproject.toml constraints.txt
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	  for name in $(CANDIDATES); do \
	    if "$$name" -c '$(PROBE)' >/dev/null 2>&1; then python="$$name"; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "No Python of at least 3.11 with the venv module was found (tried: $(CANDIDATES))." >&2; \
	  echo "Next: install one (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up .venv with $$("$$python" --version), once; this takes some minutes ..."; \
	"$$python" -m venv .venv; \
	if ! $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
	    -c constraints.txt -e '.[train,dev]' >$(SETUP_LOG) 2>&1; then \
	  tail -n 30 $(SETUP_LOG) >&2; \
	  echo "Setting up .venv failed; everything pip said is in $(SETUP_LOG)." >&2; \
	  exit 1; \
	fi; \
	touch $@; \
	echo "Ready: $$($(BIN)/python -m pip list --disable-pip-version-check 2>/dev/null | tail -n +3 | wc -l) packages."

demo: $(READY)
	@$(BIN)/python examples/demo.py $(if $(ASK),--ask)

test: $(READY)
ifdef COV
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -m "not soak and not alone" -n $(WORKERS) --dist loadfile $(ARGS)
	@$(BIN)/coverage run -m pytest -m "alone and not soak" $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS chose none
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report
else
	@$(BIN)/python -m pytest -m "not soak and not alone" -n $(WORKERS) --dist loadfile $(ARGS)
	@$(BIN)/python -m pytest -m "alone and not soak" $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS chose none
endif

check: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo "Next: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

format: $(READY)
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(READY)
	@failed=; for part in $(BENCHMARKS); do $(BIN)/python benchmarks/$$part.py || failed="$$failed $$part"; echo; done; \
	[ -z "$$failed" ] || { echo "goals missed in:$$failed" >&2; exit 1; }

soak: $(READY)
	@$(BIN)/python -m pytest -m soak --timeout 0 $(ARGS)

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
