# `make demo` and `make test` are all a newcomer needs; both set up what they use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint docs docs-serve dist bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "== Setting up a virtual environment in $(VENV) (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready ## Create the virtual environment

demo: setup ## Run the main job on embedded data and write tables and figures to out/demo
	$(BIN)/spikeslab demo --out out/demo

test: setup ## Run the test suite (six minutes on two cores)
	@echo "== Running the tests (no network, no data needed)"
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: setup ## Run the long tests too
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'slow or not slow'

lint: setup ## Run ruff, mypy and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## Build the documentation in site/: strict, with executed examples, no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

docs-serve: docs ## Show the documentation on http://localhost:8000
	$(BIN)/python -m http.server --directory site --bind localhost 8000

dist: setup ## Build wheel and sdist in dist/, install each in a clean environment and run the demo there
	rm -rf dist build
	$(BIN)/python -m build
	for file in dist/*.whl dist/*.tar.gz; do \
		rm -rf build/clean && $(PYTHON) -m venv build/clean && \
		build/clean/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
			"$$file[cli,report,sklearn]" && \
		(cd build && clean/bin/spikeslab demo --steps 500 --out clean/demo) || exit 1; \
	done
	rm -rf build

bench: setup ## Print the cost of an update and of a training step against torch.optim.SGD
	$(BIN)/spikeslab bench --suite update,step

clean: ## Remove the virtual environment, caches and outputs
	rm -rf $(VENV) out site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
