# `make demo` trains a team on this machine; `make test` checks the code. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: demo test setup clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Coterie needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/coterie train recipes/demo.yaml seed=$(SEED) --examples 3

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

clean:
	rm -rf .venv runs
