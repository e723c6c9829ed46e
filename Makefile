# Everything you can do in this repository. Each target makes the virtual environment that it needs.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
DOCS := .venv-docs/bin
DIST := .venv-dist/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
METADATA := pyproject.toml constraints.txt src/paceline/version.py

.PHONY: help setup demo test lint format test-gpu fuzz docs dist bench peers recipes bottleneck clean

##@ Start here
help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z]+:.*## / {printf "  %-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready  ## Make the virtual environment .venv, with every extra and the development tools

demo: setup  ## Generate click data, train on it in sync and in async, compare the two runs
	$(BIN)/paceline demo

##@ Check
# More processes than the two cores of CI: many tests wait for processes of Ray, or for time to pass.
test: setup lint  ## Run everything that CI runs: lint, types, import directions, tests, doctests
	$(BIN)/python -m pytest --numprocesses=3 --dist=worksteal

lint: setup  ## Check style, types, import directions, workflows and CITATION.cff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

format: setup  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-gpu: setup  ## Run the tests that need an NVIDIA GPU, and run kernels there instead of in Triton's interpreter
	TRITON_INTERPRET=0 $(BIN)/python -m pytest tests/torch tests/conformance/test_sparse_on_gpu.py \
		tests/conformance/test_gpus_over_ray.py tests/conformance/test_scoring_on_gpu.py tests/training/test_scorers.py \
		tests/conformance/test_stores.py tests/conformance/test_dense.py tests/training/cluster/test_allreduce_exchange.py

fuzz: setup  ## Damage inputs and frames at random for MINUTES=60, with bounds-checked loops (FUZZ_SEED=N repeats)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.fuzz_cache FUZZ_MINUTES=$(or $(MINUTES),60) \
		$(BIN)/python -m pytest tests/fuzz -s --timeout=0

##@ Build
docs: .venv-docs/ready  ## Write docs/reference.md from --help, check links, build the site into site/
	$(DOCS)/python docs/build.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict

dist: .venv-dist/ready  ## Build the wheel and the sdist into dist/, check them, train with the installed wheel
	rm -rf dist
	$(DIST)/python -m build --quiet --outdir dist
	$(DIST)/twine check --strict dist/*
	PYTHON=$(PYTHON) .ci/check-wheel dist/*.whl

##@ Measure
bench: setup  ## Compare training and reading speed with the peers; print JSON lines and tables
	$(BIN)/python benchmarks/embedded.py
	$(BIN)/python benchmarks/prepare.py

peers: setup  ## Compare with six other systems, each in its own environment; half an hour, several GB
	$(BIN)/python benchmarks/peers.py --write

recipes: setup  ## Run every sweep in recipes/ (MNIST=FOLDER for its IDX files); under an hour on 2 cores
	$(BIN)/python benchmarks/recipes.py $(if $(MNIST),--mnist $(MNIST))

bottleneck: setup  ## Run only the five-host sweep, in network namespaces (needs root)
	$(BIN)/python benchmarks/recipes.py --only clicks-bottleneck

##@ Clean up
clean:  ## Remove virtual environments, caches, dist/ and site/
	rm -rf .venv .venv-docs .venv-dist .mypy_cache .ruff_cache .pytest_cache .fuzz_cache .hypothesis .import_linter_cache build dist site

# Virtual environments
.venv/ready: $(METADATA)
	$(PYTHON) -c 'import sys; sys.exit("paceline needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $@

.venv-docs/ready: $(METADATA)
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python $(INSTALL) --editable '.[docs]'
	@touch $@

.venv-dist/ready: constraints.txt
	$(PYTHON) -m venv .venv-dist
	$(DIST)/python $(INSTALL) build twine
	@touch $@
