# Everything a user or a developer types. Needs Python 3.11 or newer, Linux, make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := pyproject.toml hatch_build.py switch-agent/switch_agent/bfrt_proto/bfruntime.proto

.PHONY: help demo test check lint types unit bench dashboards openapi soft-roce packages clean

help:            ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/.installed   ## the whole testbed on the twin, about a minute; KEEP=1 leaves it up, SEED=n
	@$(BIN)/python deploy/demo.py $(if $(KEEP),--keep) $(if $(SEED),--seed $(SEED))

test: packages check unit  ## linters, types, import rules and all tests, the real parts included

check: lint types          ## only linters, types and import rules

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	$(BIN)/pytest $(PYTEST_ARGS)

bench: $(VENV)/.installed-dev  ## named figures to benchmarks/out.json
	$(BIN)/python benchmarks/run.py

dashboards: $(VENV)/.installed-dev  ## rebuild the Grafana JSON from its Python
	$(BIN)/python dashboards/build.py

openapi: $(VENV)/.installed  ## rewrite docs/openapi.json from the routes of host-agent
	$(BIN)/python -m host_agent.openapi_file > docs/openapi.json.new
	mv docs/openapi.json.new docs/openapi.json

soft-roce: $(VENV)/.installed  ## a ring on real soft-RoCE devices in a virtual machine
	deploy/vm/soft-roce-demo

packages:        ## Debian packages that the tests of the real parts need (as root; otherwise it says which)
	@deploy/packages.sh

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:           ## remove what was built, compiled or measured here
	rm -rf $(VENV) dist build demo benchmarks/out.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
