"""The example of two pipelines whose lanes are merged by event time: its functions, and both pipelines on Spark."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from procession.testing import run as run_here
from tests.walk.commands import run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "exchange_tape.py"


def trades(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"at_ms": 1_700_000_000_000 + 10 * number + first, "symbol": "ABC", "price": 2.5, "amount": number}
        for number in range(count)
    ]


def valued(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"at_ms": trade["at_ms"], "symbol": trade["symbol"], "value": trade["price"] * trade["amount"]}
        for trade in given
    ]


def test_a_pipeline_of_the_example_values_trades_in_order() -> None:
    pipeline = runpy.run_path(str(EXAMPLE))["pipeline"]
    given = trades(0, 50)
    assert run_here(pipeline, {"trades": given}, epochs=20)["trades"] == valued(given)


@pytest.mark.slow  # two pipelines on Spark
def test_the_lanes_of_two_exchanges_are_one_tape(tmp_path: Path) -> None:
    given = {"north": trades(0, 300), "south": trades(5, 200)}
    for exchange, lines in given.items():
        (tmp_path / f"{exchange}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        names = ("--set", f"exchange={exchange}", "--dir", f"{exchange}-state", "--input", f"{exchange}.jsonl")
        limits = ("--listen", "127.0.0.1:0", "--epoch-records-max", "90")
        done = run("run", str(EXAMPLE), *names, *limits, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run("merge", "lanes:north", "lanes:south", "--by-event-time", "--to", "file:tape", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = run("cat", "tape", cwd=tmp_path).stdout
    found = [json.loads(line) for line in written.splitlines()]
    assert found == sorted(valued([*given["north"], *given["south"]]), key=lambda trade: trade["at_ms"])
    pipeline = runpy.run_path(str(EXAMPLE))["pipeline"]
    tested = [run_here(pipeline, {"trades": trades}).bytes["trades"].decode() for trades in given.values()]
    tested_lines = "".join(tested).replace("}{", "}\n{").splitlines()  # records of lanes have no delimiter
    assert written.splitlines() == sorted(tested_lines, key=lambda line: json.loads(line)["at_ms"])  # byte for byte
