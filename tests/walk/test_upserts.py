"""Corrected windows and sinks that replace and delete rows: the example with real servers, while parts are killed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.systems import postgres_server
from tests.systems.kafka_broker import Kafka, needs_kafka
from tests.systems.postgres_server import needs_postgres
from tests.walk.cluster import wait_for
from tests.walk.commands import pids, run, running

pytestmark = [needs_kafka, needs_postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "turnover_table.py"


def written_sales(directory: Path) -> dict[tuple[str, int], int]:
    """Write the input, and return the final rows of a table."""
    chance = random.Random(22)
    sales: list[dict[str, Any]] = []
    for number in range(300):
        late = 9_000 if number % 7 == 0 else 0
        sale = {"shop": f"s{number % 3}", "at": max(0, number * 60 - late), "cents": chance.randrange(1, 500)}
        sales.append(sale)
        if number % 11 == 0 and number > 50:
            sales.append({**sales[number - 20], "is_returned": True})
    # An hour whose sales are all returned: its row was written and is deleted.
    gone = {"shop": "s9", "at": 100, "cents": 5}
    sales[10:10] = [gone]
    sales.append({**gone, "is_returned": True})
    (directory / "sales.jsonl").write_text("".join(f"{json.dumps(sale)}\n" for sale in sales))
    sums: dict[tuple[str, int], list[int]] = {}
    for sale in sales:
        sign = -1 if sale.get("is_returned") else 1
        held = sums.setdefault((sale["shop"], sale["at"] // 3600 * 3600), [0, 0])
        held[0] += sign * sale["cents"]
        held[1] += sign
    assert sums["s9", 0] == [0, 0]
    return {place: cents for place, (cents, sold) in sums.items() if sold}


def run_through_kills(arguments: list[str | Path], directory: Path, committed: Callable[[], int]) -> None:
    """Run the example, and kill a part each time that more rows were committed."""
    with running(*arguments, cwd=directory) as pipeline:
        for victim in ("driver", "sink", "source", "sink", "driver"):
            before = committed()
            wait_for(
                lambda before=before: committed() > before or pipeline.process.poll() is not None,  # type: ignore[misc]
                "a commit",
                lambda: pipeline.said,
            )
            for pid in pids(pipeline.mark, victim):
                os.kill(pid, signal.SIGKILL)
        assert pipeline.wait() == 0, pipeline.said
    assert "restart" in pipeline.said, "a part was killed"


def epochs_of(directory: Path) -> int:
    path = directory / ".procession" / "turnover-table" / "epochs.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_delta_table_and_a_compacted_topic_have_the_corrected_rows_and_not_the_deleted_ones(
    tmp_path: Path, kafka: Kafka, is_killed: bool
) -> None:
    expected = written_sales(tmp_path)
    topic = kafka.topic()
    arguments = ["run", EXAMPLE, "--listen", "127.0.0.1:0", "--epoch-records-max", "20" if is_killed else "60"]
    arguments += ["--set", f"topic={kafka.url(topic)}"]
    if is_killed:
        run_through_kills(arguments, tmp_path, lambda: epochs_of(tmp_path))
    else:
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr + done.stdout
    rows = DeltaTable(tmp_path / "turnover").to_pyarrow_table().to_pylist()
    assert {(row["shop"], row["hour"]): row["cents"] for row in rows} == expected
    assert len(rows) == len(expected)
    messages = kafka.committed(topic)
    latest = {message.key(): message.value() for message in messages}
    kept = [json.loads(value) for value in latest.values() if value is not None]
    assert {(row["shop"], row["hour"]): row["cents"] for row in kept} == expected
    assert latest[b"s9/0"] is None, "a tombstone"
    assert sum(message.key() == b"s9/0" for message in messages) == 2, "the row and its tombstone, once each"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_table_of_postgresql_has_the_corrected_rows_and_not_the_deleted_ones(tmp_path: Path, is_killed: bool) -> None:
    expected = written_sales(tmp_path)
    with postgres_server.running() as server:
        database = postgres_server.new_database(server)
        database.execute("CREATE TABLE turnover (shop text, hour bigint, cents bigint, PRIMARY KEY (shop, hour))")
        url = f"{database.url}?table=turnover&key=shop,hour&delete_when=op=delete"
        arguments = ["run", EXAMPLE, "--listen", "127.0.0.1:0", "--epoch-records-max", "20" if is_killed else "60"]
        arguments += ["--set", f"table={url}"]
        if is_killed:
            run_through_kills(arguments, tmp_path, lambda: epochs_of(tmp_path))
        else:
            done = run(*arguments, cwd=tmp_path)
            assert done.returncode == 0, done.stderr + done.stdout
        rows = database.execute("SELECT shop, hour, cents FROM turnover")
        assert {(shop, hour): cents for shop, hour, cents in rows} == expected
