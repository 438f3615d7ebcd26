"""Standard output as a sink: the guarantees that a pipe allows, with readers that are slow, end, or deduplicate."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import faults
from procession.address import parse_address
from procession.connectors.stdout_sink import PIECE_BYTES_MAX, json_line, pieces
from procession.sdk.doubles import Worker
from procession.sdk.sink_process import SinkProcess
from procession.wire import two_phase_commit
from procession.wire.messages import Phase2, Reply
from tests.sdk.loops import on_a_loop

COMMAND = [sys.executable, "-m", "procession", "sink", "stdout"]


@contextmanager
def trial_of(directory: Path, *options: str) -> Iterator[SinkProcess]:
    with SinkProcess([*COMMAND, "{dir}", "--listen", "{listen}", *options], directory) as trial:
        yield trial


async def committed(worker: Worker, txn_id: str, start: int, data: bytes) -> None:
    worker.data(start, data)
    assert await worker.phase1(txn_id, start, start + len(data))
    await worker.phase2(txn_id, commit=True)


@on_a_loop
async def test_committed_output_is_printed_once_whatever_is_restarted(tmp_path: Path) -> None:
    with trial_of(tmp_path) as trial:
        worker = await trial.worker()
        await worker.hello()
        await committed(worker, "t1", 0, b"one\n")
        worker.data(4, b"never\n")
        assert await worker.phase1("t2", 4, 10)
        assert trial.stdout.read_bytes() == b"one\n", "nothing is printed at a vote"
        trial.kill()
        worker = await trial.worker()
        assert await worker.hello() == (4, ("t2",))
        await worker.phase2("t2", commit=False)
        await committed(worker, "t3", 4, b"two\n")
        trial.kill()
        worker = await trial.worker()
        assert await worker.hello() == (8, ())
        await committed(worker, "t4", 8, b"three\n")
    assert trial.stdout.read_bytes() == b"one\ntwo\nthree\n"


LINES = b"".join(b"%06d %s\n" % (number, b"x" * 90) for number in range(400))


@pytest.mark.parametrize("in_doubt", ["repeat", "skip"])
@pytest.mark.parametrize("point", ["sink:before-print", "sink:after-print"])
@on_a_loop
async def test_a_sink_that_is_killed_while_it_prints_leaves_only_one_piece_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, in_doubt: str
) -> None:
    cut = list(pieces(iter([LINES]), PIECE_BYTES_MAX))
    assert len(cut) > 8
    with trial_of(tmp_path, "--in-doubt", in_doubt) as trial:
        monkeypatch.setenv(faults.VARIABLE, f"{point}@4")
        worker = await trial.worker()
        await worker.hello()
        worker.data(0, LINES)
        assert await worker.phase1("t1", 0, len(LINES))
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        await trial.died()
        out = 3 if point == "sink:before-print" else 4
        assert trial.stdout.read_bytes() == b"".join(cut[:out])
        monkeypatch.delenv(faults.VARIABLE)
        worker = await trial.worker()
        assert await worker.hello() == (0, ("t1",))
        await worker.phase2("t1", commit=True)
        again = 3 if in_doubt == "repeat" else 4
        assert trial.stdout.read_bytes() == b"".join([*cut[:out], *cut[again:]])
        await committed(worker, "t2", len(LINES), b"and on\n")
        assert trial.stdout.read_bytes().endswith(b"\nand on\n")
        stderr = trial.stderr.read_text()
        assert ("sink.output_repeated" if in_doubt == "repeat" else "sink.output_skipped") in stderr


@on_a_loop
async def test_the_print_position_of_a_transaction_does_not_apply_to_the_next_one(tmp_path: Path) -> None:
    """The stored print position is older than the transaction that comes after a restart."""
    with trial_of(tmp_path) as trial:
        worker = await trial.worker()
        await worker.hello()
        await committed(worker, "t1", 0, b"a" * 100 + b"\n")
        trial.arm("sink:after-output-commit")
        worker.data(101, b"b\n")
        assert await worker.phase1("t2", 101, 103)
        worker.send(two_phase_commit.wrap(Phase2("t2", commit=True)))
        await trial.died()
        worker = await trial.worker()
        assert await worker.hello() == (101, ("t2",))
        await worker.phase2("t2", commit=True)
        await committed(worker, "t3", 103, b"c\n")
    assert trial.stdout.read_bytes() == b"a" * 100 + b"\nb\nc\n"


class Piped:
    """The sink with a pipe as its output, which a test may read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.process = subprocess.Popen(
            [*COMMAND, str(directory), "--listen", "127.0.0.1:0", "--open"],
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout
        self.pipe = self.process.stdout

    async def worker(self) -> Worker:
        while True:
            assert self.process.poll() is None
            try:
                document = json.loads((self._directory / "sink.json").read_bytes())
                if document["pid"] == self.process.pid:
                    return await Worker.connect(parse_address(document["listen"]))
            except FileNotFoundError:
                pass
            await asyncio.sleep(0.02)  # a file's appearance is all that there is to see

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := await asyncio.to_thread(self.pipe.read, size - len(data))):
            data += more
        return data


@contextmanager
def piped(directory: Path) -> Iterator[Piped]:
    sink = Piped(directory)
    try:
        yield sink
    finally:
        sink.process.kill()
        sink.process.communicate()


@on_a_loop
async def test_a_slow_reader_delays_the_commit_but_not_the_stop_of_the_sink(tmp_path: Path) -> None:
    large = LINES * 20  # more than a pipe holds
    with piped(tmp_path) as sink:
        worker = await sink.worker()
        await worker.hello()
        worker.data(0, large)
        assert await worker.phase1("t1", 0, len(large))
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        first = await sink.read(1000)
        assert first == large[:1000]
        sink.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(sink.process.wait) == 0, "although nobody reads the pipe"
        rest, stderr = sink.process.communicate()
        assert b"error" not in stderr.lower()
    printed = first + rest
    assert large.startswith(printed)
    assert len(printed) < len(large)
    with piped(tmp_path) as sink:
        worker = await sink.worker()
        assert await worker.hello() == (0, ("t1",))
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        assert printed + await sink.read(len(large) - len(printed)) == large, "the sink continues where it was"
        assert await worker.answer() == Reply("t1", commit=True)


@on_a_loop
async def test_a_sink_whose_reader_is_gone_reports_it_and_continues_with_the_next_reader(tmp_path: Path) -> None:
    with piped(tmp_path) as sink:
        worker = await sink.worker()
        await worker.hello()
        sink.pipe.close()
        worker.data(0, b"one\n")
        assert await worker.phase1("t1", 0, 4)
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        assert sink.process.stderr
        stderr = await asyncio.to_thread(sink.process.stderr.read)
        assert await asyncio.to_thread(sink.process.wait) == 3
        assert b"of this sink's output has gone.\n  Next: Start the sink again with a reader" in stderr
    with piped(tmp_path) as sink:
        worker = await sink.worker()
        assert await worker.hello() == (0, ("t1",))
        await worker.phase2("t1", commit=True)
        assert await sink.read(4) == b"one\n"


@on_a_loop
async def test_outputs_of_several_workers_are_printed_transaction_by_transaction(tmp_path: Path) -> None:
    large = LINES * 5
    with piped(tmp_path) as sink:
        workers = [await sink.worker() for _ in range(3)]
        for number, worker in enumerate(workers):
            await worker.hello(instance=f"w{number}")
            worker.data(0, large)
            assert await worker.phase1("t1", 0, len(large))
        for worker in workers:
            worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        assert await sink.read(3 * len(large)) == large * 3


@given(st.lists(st.binary(max_size=30)), st.integers(1, 12))
def test_pieces_have_the_same_bytes_and_end_at_newlines_where_possible(data: list[bytes], size: int) -> None:
    cut = list(pieces(iter(data), size))
    assert b"".join(cut) == b"".join(data)
    assert all(0 < len(piece) <= size for piece in cut)
    for piece, following in pairwise(cut):
        assert piece.endswith(b"\n") or b"\n" not in (piece + following)[:size]


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=2048) | st.binary(max_size=2048))
def test_a_line_of_json_has_the_bytes_and_their_position_and_fits_into_one_piece(data: str | bytes) -> None:
    raw = data.encode() if isinstance(data, str) else data
    line = json_line("i" * 200, 2**63, raw)
    document = json.loads(line)
    assert len(line) <= PIECE_BYTES_MAX
    assert line.count(b"\n") == 1
    assert (document["instance"], document["start"], document["end"]) == ("i" * 200, 2**63, 2**63 + len(raw))
    assert (document["text"].encode() if "text" in document else base64.b64decode(document["base64"])) == raw


def test_an_ambiguous_form_of_output_is_refused_with_the_choices(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(tmp_path), "--in-doubt", "guess"], capture_output=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert b"repeat, skip" in done.stderr
