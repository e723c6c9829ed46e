# The one list of what can be done here. Everything runs in .venv, made by the first target that needs it.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint bench peers recipes bottleneck docs setup clean

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | column -t -s '|'

setup: .venv/ready  ## Make the virtual environment

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("paceline needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup  ## Make up click data, train it in sync and async, compare
	$(BIN)/paceline demo

test: setup lint  ## Everything that must hold: lint, types, directions, tests, doctests
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal

lint: setup  ## Style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## Measure against the peers; prints JSON lines and tables
	$(BIN)/python benchmarks/embedded.py
	$(BIN)/python benchmarks/prepare.py

recipes: setup  ## Run every sweep of recipes/ (MNIST=FOLDER for its IDX files); under an hour on 2 cores
	$(BIN)/python benchmarks/recipes.py $(if $(MNIST),--mnist $(MNIST))

bottleneck: setup  ## The five-host sweep alone, in network namespaces (as root)
	$(BIN)/python benchmarks/recipes.py --only clicks-bottleneck

peers: setup  ## Measure against six other systems, each in an environment of its own; half an hour, some GB
	$(BIN)/python benchmarks/peers.py --write

docs: setup  ## Write docs/reference.md from --help and check every link
	$(BIN)/python docs/build.py

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
