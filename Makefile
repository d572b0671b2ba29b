# `make demo` trains a team on this machine; `make test` checks the code. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: demo test clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Coterie needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

.venv/for-tests: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/coterie train recipes/demo.yaml seed=$(SEED) --examples 3

# worksteal: most files stay in one process, which makes their shared fixtures once.
test: .venv/for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

clean:
	rm -rf .venv runs
