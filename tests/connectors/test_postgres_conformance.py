"""The PostgreSQL sink, in both of its modes, through every case of the conformance suite."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.sink_process import SinkProcess
from tests.systems.postgres_server import needs_postgres, new_database

pytestmark = needs_postgres

# What depends on the Output. The cases that all sinks owe to the SDK are left to `make test-all`.
SHORT_ROUND = {
    *("visible", "large", "empty-epoch", "other-bytes", "killed-commit", "killed-abort", "unvoted", "all-as-it-was"),
    *("before-vote-commit", "after-output-commit-commit", "after-recover-commit", "before-output-abort-abort"),
}


@pytest.fixture(scope="module")
def conformance(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conformance]:
    database = new_database(postgres)
    database.execute("CREATE TABLE output (instance text, position bigint, payload bytea)")
    reader = database.connect()

    def visible(directory: Path, instance: str) -> bytes:
        rows = reader.execute("SELECT payload FROM output WHERE instance = %s ORDER BY position", (instance,))
        return b"".join(payload for (payload,) in rows)

    command = [sys.executable, "-m", "procession", "sink", "postgres", database.url, "{dir}", "--listen", "{listen}"]
    command += ["--table", "output", "--mode", request.param, "--column", "instance=$instance"]
    command += ["--column", "position=$position", "--column", "payload=$payload"]
    with reader, SinkProcess(command, tmp_path_factory.mktemp("sink"), visible) as trial:
        yield Conformance(trial)
    assert database.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []


def cases() -> Iterator[Any]:
    for mode in ("prepared", "token"):
        for case in CASES:
            marks = [] if case.short in SHORT_ROUND else pytest.mark.slow
            yield pytest.param(mode, case, id=f"{mode}: {case.name}", marks=marks)


def test_the_cases_of_the_short_round_exist() -> None:
    assert {case.short for case in CASES} >= SHORT_ROUND


@pytest.mark.parametrize(("conformance", "case"), list(cases()), indirect=["conformance"])
def test_a_postgres_sink_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.KEPT, finding.why
