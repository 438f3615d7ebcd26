"""Streams in the order of event time with all processes: the output equals a sort, for any order of arrival and with
crashes.

The expected output is computed by a slow, simple reference: each stream alone, then one sort. Every run must give
exactly that, so runs with other timing need no further comparison.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from procession.cli.streams_table import ask
from procession.commit.round_files import RoundRecords
from procession.commit.spark_log import SparkLog
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.part_arguments import GATEWAY
from procession.deployment.settings import Settings
from procession.exit_status import Status
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE
from procession.storage.driver_claim import CURRENT
from procession.supervisor.part import Part
from tests.walk.cluster import PATIENCE_S, Cluster, committed, read_json, wait_for
from tests.walk.commands import Running, error_line, running

APP = """
from procession import Pipeline

pipeline = Pipeline(
    "merged", order_by="event_time", lateness_s=LATENESS, late="dead-letter", dead_letter="file:letters"
)
lines = pipeline.source("lines", streams=[3, 5, 9]).rebalance().map(bytes.upper)
lines.sink("plain", to="file:plain")
"""
STRICT = APP.replace('late="dead-letter", dead_letter="file:letters"', 'late="fail"')
PRODUCER = """
import json, random, sys, time
from pathlib import Path
from procession.sdk import Batch, SourceOptions, Stream, run_source

to, path, number, seed, gate = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
records = json.load(open(path))
cookie = next(Path(path).parent.rglob("secrets/producers")).read_bytes().strip()
chance = random.Random(seed)

class Timed:
    def streams(self):
        return [Stream(number, f"stream {number}")]

    def read(self, stream, after):
        rest = [one for one in records if after is None or one[0] > after]
        while rest:
            count = chance.randrange(1, 60)
            ids, times, payloads = zip(*rest[:count])
            rest = rest[count:]
            yield Batch.gathered(list(ids), list(times), [b""] * len(ids), [one.encode() for one in payloads])
            time.sleep(chance.random() * 0.05)  # another timing for each seed
            while len(rest) < len(records) / 2 and not gate.exists():
                time.sleep(0.01)

sys.exit(0 if run_source(Timed(), to, SourceOptions("timed", f"timed-{number}", cookie)) else 3)
"""
STREAMS = (3, 5, 9)
RECORDS = 400
SECOND = 1_000_000_000
HERE = Path(__file__)

Record = tuple[int, int, str]


def made(lateness_s: int, punctual: int = 0) -> dict[int, list[Record]]:
    """Return the inputs, which are the same in every run.

    A few records are late by more or less than the allowed lateness, but none of the first ones.
    """
    chance, streams = random.Random(7), {}
    for stream_id in STREAMS:
        now, records = 0, []
        for number in range(RECORDS):
            now += chance.randrange(3)
            behind = chance.choice((0,) * 8 + (1, lateness_s + 3)) * (number >= punctual)
            records.append((number * 2, (now - behind) * SECOND, f"stream {stream_id} record {number}"))
        streams[stream_id] = records
    return streams


def sorted_slowly(
    streams: dict[int, list[Record]], lateness_s: int, *, until_late: bool = False
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the output, or the part before the first late record, and the late records as (stream id, message id)."""
    placed = []
    for stream_id, records in streams.items():
        largest = None
        for message_id, time, payload in records:
            watermark = None if largest is None else largest - lateness_s * SECOND
            is_late = watermark is not None and time < watermark
            placed.append((watermark if is_late else time, stream_id, message_id, is_late, payload))
            largest = time if largest is None else max(largest, time)
    placed.sort()
    if until_late:
        placed = list(takewhile(lambda one: not one[3], placed))
    output = b"".join(place[4].upper().encode() + b"\n" for place in placed if not place[3])
    return output, [(row[1], row[2]) for row in placed if row[3]]


def producer(
    directory: Path, inputs: dict[int, list[Record]], stream_id: int, homes: str, seed: int, gate: Path = HERE
) -> tuple[str, ...]:
    """Return the command of a producer that waits half-way until the gate exists. It starts at one of its gateways."""
    path = directory / f"input-{stream_id}.json"
    path.write_text(json.dumps(inputs[stream_id]))
    shuffled = homes.split(",")
    random.Random(seed).shuffle(shuffled)
    return sys.executable, "-c", PRODUCER, ",".join(shuffled), str(path), str(stream_id), str(seed), str(gate)


@contextmanager
def producers(
    pipeline: Running, directory: Path, inputs: dict[int, list[Record]], gate: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a producer for each stream when the pipeline has printed its addresses."""
    found: list[str] = []

    def is_ready() -> bool:
        found[:] = re.findall(r"connectors send to (\S+);", pipeline.said)
        return bool(found) or pipeline.process.poll() is not None

    wait_for(is_ready, "the pipeline to be ready", lambda: pipeline.said)
    assert found, pipeline.said
    commands = [producer(directory, inputs, stream_id, found[0], 30 + stream_id, gate) for stream_id in STREAMS]
    with (directory / "producers.log").open("ab") as log:
        started = [subprocess.Popen(command, stderr=log) for command in commands]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


class World:
    """A cluster with its producers, which may be killed and restarted."""

    def __init__(self, directory: Path, lateness_s: int, gateways: int = 1) -> None:
        directory.mkdir(exist_ok=True)
        self.lateness_s = lateness_s
        self.inputs = made(lateness_s)
        settings = Settings(epoch_interval_s=0.02, epoch_records_max=100, gateways=gateways)
        self.cluster = Cluster(directory, APP.replace("LATENESS", str(lateness_s)), settings)

    def produce(self, stream_id: int, seed: int, gate: Path = HERE) -> str:
        """Start a producer, which waits half-way until the gate exists."""
        argv = producer(self.cluster.directory, self.inputs, stream_id, self.cluster.local.address, seed, gate)
        self.cluster.supervisor.start(Part(f"source-{stream_id}", argv))
        return f"source-{stream_id}"

    def until_done(self, sources: list[str]) -> None:
        for source in sources:
            self.cluster.until(lambda source=source: self.cluster.supervisor.is_done(source), f"the end of {source}")  # type: ignore[misc]
        self.cluster.until(self.is_quiet, "the last commit")

    def is_quiet(self) -> bool:
        for part in self.cluster.local.gateway_parts:
            with ControlClient(self.cluster.directory / part, timeout_s=10.0) as client:
                if not client.status()["is_settled"]:
                    return False
        return True

    def kill(self, part: str) -> None:
        before = self.cluster.restarts(part)
        self.cluster.supervisor.kill(part)
        self.cluster.until(lambda: self.cluster.restarts(part) > before, f"{part} to come again")

    def check(self) -> None:
        output, late = sorted_slowly(self.inputs, self.lateness_s)
        assert self.cluster.committed("plain") == output
        letters = [json.loads(line) for line in self.cluster.committed("dead-letter").splitlines()]
        assert [(letter["stream_id"], letter["message_id"]) for letter in letters] == late
        assert len(late) > 20
        assert all("LateRecord: its event time" in letter["error"] for letter in letters)
        assert base64.b64decode(letters[0]["payload"]).startswith(b"stream ")
        log = self.cluster.log()
        rounds = self.cluster.rounds()
        record = rounds.read(log.committed)
        assert record is not None
        assert record.counters["late"] == len(late)
        assert rounds.positions(log.committed) == {
            stream_id: records[-1][0] for stream_id, records in self.inputs.items()
        }


def test_a_silent_stream_holds_the_output_back_and_crashes_change_no_byte_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, lateness_s=2)
    with world.cluster as cluster:
        assert cluster.local.start()
        sources = [world.produce(stream_id, seed) for seed, stream_id in enumerate(STREAMS[:2])]
        cluster.until(lambda: cluster.status()["waiting_records"] == 2 * RECORDS + 2, "all of two streams to wait")
        status = cluster.status()
        assert status["waits_for"] == 9, "the stream that is missing is named"
        assert cluster.committed("plain") == b""

        gate = tmp_path / "gate"
        cluster.arm("gateway:before-order")
        sources.append(world.produce(9, seed=2, gate=gate))
        cluster.until(lambda: not cluster.fault.exists(), "the gateway to die with nothing in order yet")
        cluster.until(lambda: cluster.committed("plain") != b"", "the first output")
        cluster.supervisor.kill(DRIVER)
        world.kill("source-9")
        gate.touch()
        world.until_done(sources)
        assert cluster.restarts(GATEWAY) == 1
        assert cluster.restarts(DRIVER) == 1, cluster.describe()
        world.check()


@pytest.mark.slow
def test_a_late_record_stops_several_gateways_and_then_all_are_dropped_and_counted_also_when_one_is_killed(
    tmp_path: Path,
) -> None:
    """Runs one pipeline twice. The first run fails on late records and loses nothing. The second drops them, and its
    output does not depend on the number of gateways."""
    inputs = made(lateness_s=2, punctual=100)
    output, late = sorted_slowly(inputs, lateness_s=2)
    before_the_first = sorted_slowly(inputs, lateness_s=2, until_late=True)[0]
    app, pipeline = tmp_path / "app.py", tmp_path / ".procession" / "merged"
    instance = tmp_path / "plain" / "merged-plain-0"
    arguments = ["run", "app.py", "--gateways", "3", "--listen", "127.0.0.1:0", "--epoch-records-max", "100"]
    arguments += ["--epoch-interval-s", "0.02"]

    app.write_text(STRICT.replace("LATENESS", "2"))
    gate = tmp_path / "gate"
    with running(*arguments, cwd=tmp_path) as run, producers(run, tmp_path, inputs, gate):
        assert run.wait() == Status.ACT, run.said
    sentence = error_line(run.said)
    named = re.fullmatch(
        r"Message (\d+) of stream (\d+) \(stream \2\) is late: its event time -?\d+ is behind .* watermark\.", sentence
    )
    assert named is not None, sentence
    assert (int(named[2]), int(named[1])) in late
    assert 'late="drop"' in run.said
    assert before_the_first.startswith(committed(instance)), "nothing of the epoch of a late record is committed"
    assert committed(instance), "what came before is"

    app.write_text(STRICT.replace("LATENESS", "2").replace('"fail"', '"drop"'))
    with running(*arguments, cwd=tmp_path) as run, producers(run, tmp_path, inputs, gate) as sources:
        wait_for(lambda: len(committed(instance)) > len(before_the_first), "the first output", lambda: run.said)
        os.kill(read_json(pipeline / "gateway-1" / ADDRESS_FILE)["pid"], signal.SIGKILL)
        gate.touch()
        for source in sources:
            assert source.wait(PATIENCE_S) == 0, run.said
        rows = ask(pipeline / "gateway", cookie=b"", timeout_s=PATIENCE_S)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == Status.DONE, run.said
    assert 0 < sum(row["late"] for row in rows) <= len(late), "each gateway counts from its start on"
    end = rf"([\d,]+) of \1 records committed in .* epochs; {len(late)} of them arrived late, and were dropped$"
    assert re.search(end, run.said), run.said
    assert committed(instance) == output
    copy = pipeline / "checkpoint" / f"{int((pipeline / 'checkpoint' / CURRENT).read_text()):010d}"
    rounds, last = RoundRecords(copy / "rounds"), SparkLog(copy).committed
    record = rounds.read(last)
    assert record is not None
    assert record.counters["late"] == len(late)
    assert rounds.positions(last) == {stream_id: records[-1][0] for stream_id, records in inputs.items()}
    assert len(record.offsets) > 1, "more than one gateway took part"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("lateness_s", [0, 2])
@pytest.mark.parametrize("gateways", [1, 2, 3])
def test_another_timing_gives_the_same_bytes(tmp_path: Path, gateways: int, seed: int, lateness_s: int) -> None:
    chance, world = random.Random(seed), World(tmp_path, lateness_s, gateways)
    with world.cluster as cluster:
        assert cluster.local.start()
        order = chance.sample(STREAMS, len(STREAMS))
        sources = [world.produce(stream_id, seed * 10 + number) for number, stream_id in enumerate(order)]
        for _ in range(chance.randrange(4)):
            cluster.supervisor.kill(chance.choice([*cluster.local.gateway_parts, DRIVER, *sources]))
            reached = len(cluster.committed("plain"))
            cluster.until(
                lambda reached=reached: (
                    len(cluster.committed("plain")) > reached  # type: ignore[misc]
                    or all(map(cluster.supervisor.is_done, sources))
                ),
                "more output",
            )
        world.until_done(sources)
        world.check()
