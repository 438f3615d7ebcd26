"""The continuous check of outputs: every planted fault in a sink's files is found at the next poll."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from procession.chaos.chaos_records import KEYS, RECORD_BYTES, record, records, tag, unsalted
from procession.chaos.output_monitor import MonitoredOutputs, MonitoredStream
from procession.storage.journal import encode
from procession.verify.verdict import Outcome

COUNT = 40
Lines = list[bytes]


class Files:
    """The files of two streams, and of two sinks to which a test commits lines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.streams = [self.stream(number) for number in range(2)]
        self.outputs = MonitoredOutputs({"left": directory / "left", "right": directory / "right"})
        for stream in self.streams:
            self.outputs.expect(stream)
        self.ends = {"left": 0, "right": 0}
        self.rounds = 0

    def stream(self, number: int) -> MonitoredStream:
        path = self.directory / f"{tag(number)}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in records(tag(number), COUNT)))
        return MonitoredStream(tag(number), path, COUNT)

    def commit(self, lines: Lines, sinks: tuple[str, ...] = ("left", "right"), salt: bytes = b"00000000") -> None:
        data = b"".join(line + b" " + salt + b"\n" for line in lines)
        for sink in sinks:
            self.rounds += 1
            start, end = self.ends[sink], self.ends[sink] + len(data)
            txn = f"t{self.rounds}"
            with (self.directory / f"{sink}.data").open("ab") as file:
                file.write(data)
            with (self.directory / f"{sink}.txnlog").open("ab") as log:
                log.write(encode({"op": "phase1", "txn": txn, "start": start, "end": end, "vote": True}))
                log.write(encode({"op": "phase2", "txn": txn, "commit": True}))
            self.ends[sink] = end


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def interleaved() -> Lines:
    pairs = zip(records(tag(0), COUNT), records(tag(1), COUNT), strict=True)
    return [line for pair in pairs for line in pair]


def test_a_record_is_unique_has_fifty_bytes_and_a_key_from_a_to_j() -> None:
    made = [record(tag(stream), number) for stream in range(3) for number in range(500)]
    assert len(set(made)) == len(made)
    assert {len(payload) for payload in made} == {RECORD_BYTES}
    assert {payload.split()[2] for payload in made} == {bytes([key]) for key in KEYS}
    assert unsalted([made[0] + b" 12345678"]) == {tag(0): [made[0]]}


def test_streams_may_interleave_and_arrive_in_small_parts(files: Files) -> None:
    lines = interleaved()
    for start in range(0, len(lines), 7):
        files.commit(lines[start : start + 7], salt=b"%08d" % start)
        assert files.outputs.poll() == []
    assert files.outputs.missing() == []
    assert files.outputs.committed == 2 * COUNT
    assert {verdict.outcome for verdict in files.outputs.compare_all().values()} == {Outcome.CLEAN}


def test_records_that_have_not_arrived_are_missing_and_not_wrong(files: Files) -> None:
    files.commit(interleaved()[:-1])
    assert files.outputs.poll() == []
    assert files.outputs.missing() == [
        f"{side} has {COUNT - 1} of {COUNT} records of stream {tag(1)}" for side in ("left", "right")
    ]
    assert {verdict.outcome for verdict in files.outputs.compare_all().values()} == {Outcome.VIOLATED}


DAMAGES: dict[str, Callable[[Lines], Lines]] = {
    "1 doubled": lambda lines: [*lines[:9], lines[8], *lines[9:]],
    "1 lost": lambda lines: [*lines[:9], *lines[10:]],
    "1 out of order": lambda lines: [*lines[:8], lines[10], lines[9], lines[8], *lines[11:]],
    "1 corrupt": lambda lines: [*lines[:9], lines[9][:20] + b"?" + lines[9][21:], *lines[10:]],
    "that no producer sent": lambda lines: [*lines[:9], record("s9999", 1), *lines[9:]],
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_planted_fault_is_found_and_named(files: Files, what: str) -> None:
    files.commit(DAMAGES[what](interleaved()))
    wrong = files.outputs.poll()
    assert any(what in sentence for sentence in wrong), wrong


def test_sinks_with_different_attempts_of_an_epoch_are_found(files: Files) -> None:
    files.commit(interleaved(), ("left",), salt=b"aaaaaaaa")
    assert files.outputs.poll() == []
    files.commit(interleaved(), ("right",), salt=b"bbbbbbbb")
    assert "left and right differ" in files.outputs.poll()[0]


def test_missing_committed_output_is_found(files: Files) -> None:
    files.commit(interleaved())
    (files.directory / "right.data").write_bytes(b"")
    assert any("committed output is missing" in sentence for sentence in files.outputs.poll())


def test_a_commit_that_leaves_a_gap_is_found(files: Files) -> None:
    files.ends["left"] += 100
    files.commit(interleaved(), ("left",))
    assert any("was the end" in sentence for sentence in files.outputs.poll())
