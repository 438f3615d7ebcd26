"""Runs the examples of docs/how-to/connectors.md: its source and scripts with a real gateway, its sink in the
conformance suite."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from procession.sdk.conformance import CASES, CaseOutcome, Conformance
from procession.sdk.sink_process import SinkProcess
from procession.sdk.source_records import Stream
from tests.sdk.gateways import LivingGateway, living_gateway

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "how-to" / "connectors.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES_MAX = 30
PATIENCE_S = 60


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LivingGateway]:
    with living_gateway(tmp_path) as living:
        yield living


def example(fragment: str) -> str:
    """Return the example of the page that contains this text."""
    (text,) = [text for text in EXAMPLES if fragment in text]
    return text


def loaded(text: str, directory: Path) -> ModuleType:
    path = directory / "example.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("connectors_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fill(database: Path, numbers: range) -> None:
    with sqlite3.connect(database) as rows:
        rows.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at INTEGER, customer TEXT, body BLOB)")
        values = [(number, number * 10, f"c{number % 3}", b"body %d" % number) for number in numbers]
        rows.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", values)
    rows.close()


def test_the_source_of_the_page_has_30_lines_and_sends_each_row_once_over_two_runs(
    tmp_path: Path, gateway: LivingGateway
) -> None:
    text = example("class TableSource")
    assert len([line for line in text.splitlines() if line.strip()]) <= LINES_MAX
    program, database = tmp_path / "table.py", tmp_path / "events.db"
    program.write_text(text)
    for numbers in (range(5000), range(7000, 7100)):
        fill(database, numbers)
        command = [sys.executable, str(program), str(database), gateway.listen]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{len(numbers):,} records committed" in done.stderr
    rows = gateway.rows(Stream.named(f"{database}:events").id)
    assert rows == [
        (number, number * 10, b"c%d" % (number % 3), b"body %d" % number)
        for number in (*range(5000), *range(7000, 7100))
    ]


def test_the_scripts_of_the_page_have_the_described_effect(tmp_path: Path, gateway: LivingGateway) -> None:
    loaded(example("def send_orders"), tmp_path).send_orders(gateway.listen)
    assert [row[2:] for row in gateway.rows(Stream.named("orders").id)] == [
        (b"apples", b"one apple"),
        (b"pears", b"two pears"),
    ]
    lines = loaded(example("def send_lines"), tmp_path)
    for count in (3, 3, 5):
        lines.send_lines(gateway.listen, [f"line {number}" for number in range(count)])
    assert gateway.payloads(Stream.named("lines").id) == [b"line %d" % number for number in range(5)]


def rows_of(directory: Path, instance: str) -> bytes:
    rows = sqlite3.connect(directory / f"{instance}.db")
    try:
        return b"".join(payload for (payload,) in rows.execute("SELECT payload FROM records ORDER BY position"))
    finally:
        rows.close()


def test_the_sink_of_the_page_has_30_lines_and_conforms(tmp_path: Path) -> None:
    text = example("class TableOutput")
    assert len([line for line in text.splitlines() if line.strip()]) <= LINES_MAX
    program = tmp_path / "table_sink.py"
    program.write_text(text)
    with SinkProcess([sys.executable, str(program), "{dir}", "{listen}"], tmp_path, rows_of) as trial:
        conformance = Conformance(trial)
        findings = {case.name: asyncio.run(conformance.run(case)) for case in CASES}
    assert {name: found.why for name, found in findings.items() if found.outcome is not CaseOutcome.PASSED} == {}
