PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup test lint docs ci

setup:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[test,lint,docs]'

test:
	$(BIN)/python -m pytest -n 3

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	for page in cli config rules house terminal aio api; do $(BIN)/python docs/tools/make_$$page.py --check || exit 1; done
	$(BIN)/python docs/tools/examples.py --check

docs:
	for page in cli config rules house terminal aio api; do $(BIN)/python docs/tools/make_$$page.py || exit 1; done
	$(BIN)/python docs/tools/examples.py
	$(BIN)/mkdocs build --strict

ci:
	bash .ci/run
