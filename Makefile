# Targets that need the environment create it first, so `make run` is enough on a new machine.
.DEFAULT_GOAL := help
SHELL := bash
BIN := .venv/bin
ARGS ?=

.PHONY: help setup systems run test test-all check format docs wheel bench chaos simulate mutate fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing tools and packages; the command is then at .venv/bin/procession
	@scripts/setup

run: setup ## run the demo (ARGS="--records 2000000 --crash")
	@$(BIN)/procession demo $(ARGS)

# Installs the systems that tests of connectors and of the dashboard use. If a system cannot be installed, its tests fail with
# the reason, unless PROCESSION_WITHOUT names the system (a comma-separated list, such as kafka,postgres).
systems: setup
	@scripts/kafka || true
	@scripts/postgres >/dev/null || true
	@scripts/cluster || true
	@scripts/browser >/dev/null || true
	@scripts/promtool >/dev/null || true

test: setup systems ## run all tests except the slow ones, on two workers (ARGS="tests/wire -x")
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

test-all: setup systems ## run all tests, including the slow ones
	@scripts/s3 || true
	@scripts/yarn || true
	@PROCESSION_TEST_ALL=1 $(BIN)/pytest -n 2 --dist loadfile -m "slow or not slow" $(ARGS)

check: setup ## check format, lint, types (also of tests and of programs in tests) and house rules
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy
	@$(BIN)/python -m tests.embedded_code .make/embedded && $(BIN)/mypy .make/embedded
	@$(BIN)/pytest tests/test_house.py

format: setup ## format the code and apply automatic fixes of the linter
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

docs: setup ## build the documentation and the API reference in site/
	@$(BIN)/python -m mkdocs --quiet build --strict
	@echo site/index.html

wheel: setup ## build a wheel for `pip install` in dist/
	@$(BIN)/python -m hatchling build -t wheel -d dist

bench: setup ## run all benchmarks or one of them (ARGS="listing1 --json"; ARGS=--help lists them)
	@$(BIN)/procession bench $(ARGS)

chaos: setup ## inject faults for MINUTES (10) with SEED (random), and verify the output
	@$(BIN)/procession chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: setup ## run RUNS (1000) simulations with faults from SEED (0) on, in JOBS processes (one per core)
	@$(BIN)/procession simulate --runs $(or $(RUNS),1000) --seed $(or $(SEED),0) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

mutate: setup ## delete one line of code at a time, and list lines whose loss no test notices (ARGS="--since HEAD~1")
	@$(BIN)/python -m tests.mutation $(ARGS)

fuzz: setup ## fuzz the protocol's decoders for SECONDS (60) (ARGS="stream session --keep")
	@scripts/fuzz --seconds $(or $(SECONDS),60) $(ARGS)

clean: ## remove the environment and all generated files
	@rm -rf .venv .make .procession .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
