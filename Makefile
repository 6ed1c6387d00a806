# `make demo` and `make test` do all the set-up themselves: Python 3.11 or newer, pip and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: setup demo test test-slow test-peers check clean

setup: $(VENV)/dev

demo: $(VENV)/demo
	$(BIN)/bartizan demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/dev
	$(BIN)/python -m pytest -m slow

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/demo: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what the demo needs (about a minute the first time) ..."
	$(PIP) --editable ".[cli]"
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what the tests need, torch included (a minute or two the first time) ..."
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/demo

$(VENV):
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .venv-peers build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
