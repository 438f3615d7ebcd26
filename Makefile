# Every target makes the environment first, if it must: `make run` is enough on a new machine.
.DEFAULT_GOAL := help
SHELL := bash
BIN := .venv/bin
ARGS ?=

.PHONY: help setup systems run test test-all check format docs wheel bench chaos simulate mutate fuzz clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing and leave the command at .venv/bin/procession
	@scripts/setup

run: setup ## the demo: every record, once, in order (ARGS="--records 2000000 --crash")
	@$(BIN)/procession demo $(ARGS)

# What the tests of connectors and of the dashboard use. Where one cannot be had, its tests fail and say so, unless PROCESSION_WITHOUT
# names it (a comma list, such as kafka,postgres).
systems: setup
	@scripts/kafka || true
	@scripts/postgres >/dev/null || true
	@scripts/cluster || true
	@scripts/browser >/dev/null || true
	@scripts/promtool >/dev/null || true

test: setup systems ## all tests, file by file on two workers (ARGS="tests/wire -x")
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

test-all: setup systems ## all tests, and those that take long
	@scripts/s3 || true
	@PROCESSION_TEST_ALL=1 $(BIN)/pytest -n 2 --dist loadfile -m "slow or not slow" $(ARGS)

check: setup ## format, lint, types (of tests and of programs inside tests too), house rules
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy
	@$(BIN)/python -m tests.embedded_code .make/embedded && $(BIN)/mypy .make/embedded
	@$(BIN)/pytest tests/test_house.py

format: setup ## format the code and mend what the linter can
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

docs: setup ## build the documentation and the API reference into site/
	@$(BIN)/python -m mkdocs --quiet build --strict
	@echo site/index.html

wheel: setup ## build what `pip install` takes into dist/
	@$(BIN)/python -m hatchling build -t wheel -d dist

bench: setup ## measure: all there is, or one of it (ARGS="listing1 --json"; ARGS=--help lists them)
	@$(BIN)/procession bench $(ARGS)

chaos: setup ## crash everything for MINUTES (10) by SEED (random), and judge what comes out
	@$(BIN)/procession chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: setup ## run RUNS (1000) simulations from SEED (0) on, by JOBS processes (one a core), with faults at every step
	@$(BIN)/procession simulate --runs $(or $(RUNS),1000) --seed $(or $(SEED),0) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

mutate: setup ## take one protecting line at a time out of the code, and list what nothing notices (ARGS="--since HEAD~1")
	@$(BIN)/python -m tests.mutation $(ARGS)

fuzz: setup ## look for bytes that break the protocol's code, for SECONDS (60) (ARGS="stream session --keep")
	@scripts/fuzz --seconds $(or $(SECONDS),60) $(ARGS)

clean: ## remove the environment and everything that was made here
	@rm -rf .venv .make .procession .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
