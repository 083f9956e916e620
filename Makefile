# Needs a Python >= 3.11 with venv, and make. pip takes its indexes from the user's own configuration.

HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
ARGS ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MANIFESTS := pyproject.toml $(wildcard platforms/*/pyproject.toml) constraints.txt $(wildcard platforms/cpu/hatch_build.py platforms/cpu/csrc/* platforms/cpu/csrc/*/*)
.DEFAULT_GOAL := help
.PHONY: help install install-dev serve check test test-all nightly gpu gpu-wheels bench dist docs site format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  make serve takes HOST=$(HOST) PORT=$(PORT) MODEL=folder-or-name ARGS='further flags'"

install: $(VENV)/.runtime ## Tessera and its CPU platform in .venv
install-dev: $(VENV)/.dev ## install, and what checks and tests need

serve: $(VENV)/.runtime ## install and serve MODEL, or the bundled demo
	@exec $(BIN)/tessera serve $(if $(MODEL),'$(MODEL)') --host '$(HOST)' --port '$(PORT)' $(ARGS)

check: $(VENV)/.dev ## lint, types, import contracts, neutrality, torch-free unit tests
	@$(BIN)/python -m tools.run_stages check

test: $(VENV)/.dev ## check, and every test that decides whether a change is right
	@$(BIN)/python -m tools.run_stages test

test-all: $(VENV)/.dev ## what CI runs: test, and other processors, devices, clients, browsers
	@$(BIN)/python -m tools.run_stages test-all

nightly: $(VENV)/.dev ## every test that is too long for make test-all
	@$(BIN)/python -m tools.run_stages nightly

gpu-wheels: $(VENV)/.dev ## download into .whl what a machine with torch, but no network, lacks for make gpu
	@$(BIN)/python -m tools.gpu_wheels .whl

gpu: ## what only a GPU can show, in parts, without network, with PYTHON; figures in OUT
	@$(PYTHON) -m tools.gpu $(ARGS)

bench: $(VENV)/.dev ## benchmarks/compare.py ARGS
	@$(BIN)/python benchmarks/compare.py $(ARGS)

dist: $(VENV)/.dev ## wheels and source archives of core and of the platform packages, in dist/, and what they bring
	@$(BIN)/python -m tools.build_dist
	@$(BIN)/python -m tools.sbom

docs: $(VENV)/.dev ## check what the documentation claims, and print the path of a request
	@$(BIN)/pytest tests/docs
	@$(BIN)/python -m tools.trace_request

site: $(VENV)/.dev ## the documentation as a site, in build/site, and whether its links lead somewhere
	@$(BIN)/python -m tools.site

format: $(VENV)/.dev ## format the code and sort the imports
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

clean: ## remove .venv and whatever was built or cached
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)

# A stamp is newer than what it was made from, so that a second make has nothing to do.
$(VENV)/.runtime: $(MANIFESTS) | $(BIN)/python
	@echo "Installing Tessera and its CPU platform into $(VENV) (torch is the large part)"
	@$(PIP) install --quiet -c constraints.txt hatchling
	@$(PIP) install --quiet -c constraints.txt --no-build-isolation -e . -e platforms/cpu
	@touch $@
	@echo "Installed: $(BIN)/tessera"

$(VENV)/.dev: $(VENV)/.runtime
	@echo "Installing what checks and tests need into $(VENV)"
	@$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@$(PIP) install --quiet --no-deps --no-build-isolation -e platforms/triton
	@touch $@
