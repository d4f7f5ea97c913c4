# `make demo` and `make test` are all a newcomer needs: each sets up what it uses.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
# Each holds torch and MindSpore, 1.5 GB; a file of tests stays in one of them.
JOBS ?= 2

.PHONY: help setup demo test test-all test-long lint bench realports clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /	/'

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q -c constraints.txt torch mindspore -e '.[dev]'
	touch $@

setup: $(VENV)/.ready ## the main environment in .venv: torch, mindspore, aligner

demo: setup ## a planted bug found in a torch/MindSpore pair
	$(RUN) -m aligner demo build/demo

test: setup ## the tests of the main environment
	$(RUN) -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-all: test ## the main environment, then the others of the table in CONTRIBUTING.md
	sh tests/environments.sh old bare39 bare311 mindtorch mindnlp

test-long: setup ## every case of every test of the main environment
	ALIGNER_LONG=1 $(RUN) -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

lint: setup ## ruff and mypy, and whether the oldest Python that is supported can read it, where there is one
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	@for python in python3.9 $$HOME/.pyenv/versions/3.9.*/bin/python; do \
		! "$$python" -c pass 2>/dev/null || exec "$$python" -m compileall -q aligner hooks tests; \
	done

bench: setup ## every figure of the README, each next to its limit
	$(RUN) benchmarks/run_all.py

realports: .venv-realports/.ready ## nets that other people wrote, compared (benchmarks/realports); takes an hour
	.venv-realports/bin/python benchmarks/realports/run.py --planted

.venv-realports/.ready: constraints.txt benchmarks/realports/constraints.txt
	PYTHON=$(PYTHON) sh benchmarks/realports/install.sh

clean: ## remove environments and caches
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
