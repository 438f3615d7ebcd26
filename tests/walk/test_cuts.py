"""One app on the same input with several epoch sizes and numbers of tasks: the output is that of a sequential
program."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from procession.connectors.file_source import stream_id_of
from procession.driver.app_file import load_app
from procession.storage.segment import INGRESS_SCHEMA
from tests.operators.reference import Sequential
from tests.walk.cluster import committed
from tests.walk.commands import run

APP = '''
import os
import pyarrow as pa
import pyarrow.compute as pc
from procession import Pipeline

def words(line):
    """Errs on a line that has no words."""
    return line.split() or [][0]

def picky(word):
    if word.endswith("7"):
        raise ValueError(f"not {word}")
    return word

def loud(batch):
    return pc.utf8_upper(batch.column("payload").cast(pa.string()))

pipeline = Pipeline("cuts", parallelism=int(os.environ.get("TASKS", "1")), dead_letter="file:output")
lines = pipeline.source("lines", codec="text")
lines.sink("copy", to="file:output")
found = lines.flat_map(words, name="words").map(picky, name="picky")
found.filter(lambda word: word[-1] in "13579").sink("odd", to="file:output", framing="raw")
found.map_batches(loud, name="louder").sink("loud", to="file:output")
'''


@pytest.mark.parametrize(("tasks", "records_max"), [pytest.param(1, 100_000, marks=pytest.mark.slow), (4, 331)])
def test_i6_i11_epoch_cuts_and_parallelism_cannot_be_seen_in_the_output(
    tmp_path: Path, tasks: int, records_max: int
) -> None:
    chance = random.Random(11)
    lines = [b" ".join(b"w%d" % chance.randrange(100) for _ in range(chance.randrange(4))) for _ in range(2_000)]
    lines[500] = b"\xff\xfe"
    given = tmp_path / "input.txt"
    given.write_bytes(b"".join(line + b"\n" for line in lines))
    app = tmp_path / "app.py"
    app.write_text(APP)
    expected = sequential(app, given, lines)
    assert all(expected.values())

    arguments = ["run", app, "--input", given, "--listen", "127.0.0.1:0", "--epoch-records-max", str(records_max)]
    done = run(*arguments, cwd=tmp_path, TASKS=str(tasks))
    assert done.returncode == 0, done.stderr
    assert {sink: committed(tmp_path / "output" / f"cuts-{sink}-0") for sink in expected} == expected


def sequential(app: Path, given: Path, lines: list[bytes]) -> dict[str, bytes]:
    """Return the output of a program that processes one record after the other."""
    positions = [0]
    for line in lines[:-1]:
        positions.append(positions[-1] + len(line) + 1)
    count = len(lines)
    columns = [[0] * count, [stream_id_of(given)] * count, positions, [0] * count, [b""] * count, lines]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)]
    graph = load_app(app).graph
    return Sequential(graph, {"louder": bytes.upper}).run(pa.record_batch(arrays, schema=INGRESS_SCHEMA))


@pytest.fixture(autouse=True)
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKS", raising=False)
