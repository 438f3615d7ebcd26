"""The PostgreSQL sink passes every case of the conformance suite in both of its modes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.sink_process import SinkProcess
from tests.connectors.conformance_round import SHORT_ROUND, cases
from tests.systems.postgres_server import needs_postgres, new_database

pytestmark = needs_postgres


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


def test_the_cases_of_the_short_round_exist() -> None:
    assert {case.short for case in CASES} >= SHORT_ROUND


@pytest.mark.parametrize(
    ("conformance", "case"),
    [case for mode in ("prepared", "token") for case in cases(mode, name=mode)],
    indirect=["conformance"],
)
def test_a_postgres_sink_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why
