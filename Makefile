# `make test` and `make demo` need Python 3.11 or newer and make, nothing else: they set up their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := $(VENV)/.ready
USABLE := $(VENV)/.usable
SELECTED := not nightly
TESTS ?= # all, or some files and folders
export BAYESADAM_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared/data))

.PHONY: help test test-all demo docs lint types unit benchmark clean

help:
	@echo "make demo       what a posterior adds, in one or two minutes"
	@echo "make test       lint, types and unit: what continuous integration runs for every change"
	@echo "make test-all   the same with the nightly tests: of benchmarks, experiments, documentation, the wheel and public names"
	@echo "make lint       ruff"
	@echo "make types      mypy"
	@echo "make unit       the tests without the nightly ones, one process per core"
	@echo "make docs       the documentation as a site, in site/"
	@echo "make benchmark  all benchmarks, with their peers, to runs/benchmarks; some hours"
	@echo "make clean      remove the environment and all caches"

test: lint types unit

test-all: SELECTED :=
test-all: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# A process per core, each with one thread: threads that compete for the same cores only wait for each other.
unit: $(READY)
	OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),1) $(BIN)/python -m pytest -q -n auto --dist worksteal -m "$(SELECTED)" $(TESTS)

docs: $(READY)
	$(BIN)/mkdocs build --strict

demo: $(USABLE)
	$(BIN)/python -m bayesadam demo

benchmark: $(READY)
	$(BIN)/python -m pip install --quiet --group benchmark
	$(BIN)/pip install --quiet --no-deps backpack-for-pytorch==1.7.1 opacus==1.6.0 einops==0.8.2 opt-einsum==3.4.0 unfoldNd==0.2.3
	$(BIN)/pip install --quiet --no-deps bayesian-torch==0.5.0 torchbnn==1.2 laplace-torch==0.3 curvlinops-for-pytorch==3.0.1 \
		asdfghjkl==0.1a5 asdl==0.1.5 torchmetrics==1.9.0 lightning-utilities==0.15.3 linear_operator==0.6.1 \
		einconv==0.1.0 jaxtyping==0.3.11
	$(BIN)/python benchmarks/optimizer_step.py
	$(BIN)/python benchmarks/iteration.py
	$(BIN)/python benchmarks/training_loops.py
	$(BIN)/python benchmarks/variational.py
	$(BIN)/python benchmarks/laplace.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/estimators.py
	$(BIN)/python benchmarks/large_table.py

# The library with all of its extras, and then what its tests need as well.
# Files are compiled when they are imported, which most never are: that saves a minute.
$(USABLE): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile -e ".[all]"
	touch $@

$(READY): $(USABLE)
	$(BIN)/python -m pip install --quiet "pip>=25.1" # the first that installs dependency groups
	$(BIN)/python -m pip install --quiet --no-compile -e ".[all,integrations]" --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
