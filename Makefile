# `make test` and `make demo` need Python 3.10 or newer and make, nothing else: they set up their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export BAYESADAM_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared/data))

.PHONY: test demo lint types unit benchmark clean

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/python -m pytest -q

demo: $(READY)
	$(BIN)/python -m bayesadam demo

benchmark: $(READY)
	$(BIN)/pip install --quiet -e ".[benchmark]"
	$(BIN)/pip install --quiet --no-deps backpack-for-pytorch==1.7.1 opacus==1.6.0 einops==0.8.2 opt-einsum==3.4.0 unfoldNd==0.2.3
	$(BIN)/python benchmarks/optimizer_step.py
	$(BIN)/python benchmarks/curvature.py

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed") if sys.version_info < (3, 10) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
