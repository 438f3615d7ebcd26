"""Every sink that we ship, run as a program, passes every case of the conformance suite."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from procession.connectors.epochs_sink import epoch_files, epochs_directory
from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.sink_process import SinkProcess, Visible
from procession.verify.sink_outputs import committed_output
from tests.connectors.conformance_round import SHORT_ROUND, cases


def of_files(directory: Path, instance: str) -> bytes:
    return b"".join(committed_output(directory, instance))


def of_epochs(directory: Path, instance: str) -> bytes:
    return b"".join(file.path.read_bytes() for file in epoch_files(epochs_directory(directory / instance)))


def of_stdout(directory: Path, instance: str) -> bytes:
    """Read standard output as a reader does that remembers the end of the last object and skips repeated ones."""
    data = b""
    for line in (directory.parent / "stdout").read_bytes().splitlines():
        piece = json.loads(line)
        if piece["instance"] == instance and piece["start"] == len(data):
            data += piece["text"].encode() if "text" in piece else base64.b64decode(piece["base64"])
    return data


@dataclass(frozen=True, slots=True)
class Shipped:
    name: str
    arguments: tuple[str, ...]
    visible: Visible
    short_round: frozenset[str] = SHORT_ROUND


SHIPPED = (
    Shipped("file", ("file",), of_files, frozenset(case.short for case in CASES)),
    Shipped("epochs", ("epochs",), of_epochs),
    Shipped("epochs --empty", ("epochs", "--empty", "--suffix", ".csv"), of_epochs, frozenset()),
    Shipped("stdout --json", ("stdout", "--json"), of_stdout),
)


@pytest.fixture(scope="module")
def conformance(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    shipped: Shipped = request.param
    kind, *options = shipped.arguments
    command = [sys.executable, "-m", "procession", "sink", kind, "{dir}", "--listen", "{listen}", *options]
    with SinkProcess(command, tmp_path_factory.mktemp("sink"), shipped.visible) as trial:
        yield Conformance(trial)


@pytest.mark.parametrize(
    ("conformance", "case"),
    [case for shipped in SHIPPED for case in cases(shipped, name=shipped.name, short_round=shipped.short_round)],
    indirect=["conformance"],
)
def test_each_shipped_sink_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why
