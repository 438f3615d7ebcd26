"""The live check compares outputs while they grow with decisions and acknowledgements, and reads nothing twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId as Name
from procession.connectors.file_source import stream_id_of
from procession.errors import ConfigError
from procession.sdk.ack_log import AckLog
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.storage.journal import HEAD_BYTES
from procession.verify.comparison import ComparisonRequest, judge
from procession.verify.live_check import LiveCheck
from procession.verify.verdict import Outcome

RECORDS = [b"record-%d\n" % number for number in range(100)]


class Run:
    """A sink and a checkpoint, written as in a run with epochs of ten records."""

    def __init__(self, directory: Path) -> None:
        self.input = directory / "input.txt"
        self.input.write_bytes(b"".join(RECORDS))
        self.output = directory / "output"
        self.output.mkdir()
        self.checkpoint = Checkpoint.claim(directory / "checkpoint", name="app", fingerprint="f")
        self.log = TransactionLog(self.output / "app-0.txnlog")
        self.log.open()
        self.end = 0
        self.epoch = -1
        self.question = ComparisonRequest([self.input], self.output, checkpoint=directory / "checkpoint")

    def name(self, epoch: int, attempt: int = 1) -> str:
        return str(Name(epoch, self.checkpoint.fence, attempt, self.checkpoint.id, "app", "out"))

    def vote(self, records: list[bytes]) -> SinkShare:
        data = b"".join(records)
        descriptor = os.open(self.output / "app-0.data", os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, data, self.end)
        os.close(descriptor)
        self.epoch += 1
        part = SinkShare(self.name(self.epoch), self.end, self.end + len(data))
        self.log.vote(Transaction(*vars(part).values()), True)
        return part

    def decide(self, part: SinkShare) -> None:
        self.checkpoint.rounds.write(RoundRecord(self.epoch, self.checkpoint.fence, "f", 0, 0, {"out": part}))
        for part_of_log in ("offsets", "commits"):
            (self.checkpoint.directory / part_of_log).mkdir(exist_ok=True)
            (self.checkpoint.directory / part_of_log / str(self.epoch)).write_text("v1\n{}\n{}")

    def show(self, part: SinkShare) -> None:
        self.log.decide(part.txn, True)
        self.end = part.end

    def do_epoch(self, records: list[bytes]) -> None:
        part = self.vote(records)
        self.decide(part)
        self.show(part)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.log.close()


def test_a_run_is_unknown_at_first_then_clean_as_it_grows(run: Run) -> None:
    watch = LiveCheck(run.question)
    assert watch.poll().outcome is Outcome.UNKNOWN
    for number in range(10):
        run.do_epoch(RECORDS[10 * number : 10 * number + 10])
        report = watch.poll()
        assert (report.outcome, report.outputs[0].verdict.committed) == (Outcome.CLEAN, 10 * number + 10)
        assert watch.poll() == report
    watch.close()
    assert judge(run.question).is_clean


def test_checked_output_is_not_read_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for record in RECORDS[:60]:
        run.do_epoch([record])
    watch = LiveCheck(run.question)
    assert watch.poll().is_clean
    read: list[tuple[str, int, int]] = []
    pread = os.pread

    def noted(file: int, size: int, position: int) -> bytes:
        data = pread(file, size, position)
        read.append((Path(os.readlink(f"/proc/self/fd/{file}")).suffix, position, len(data)))
        return data

    monkeypatch.setattr(os, "pread", noted)
    assert watch.poll().is_clean
    length = run.log.path.stat().st_size
    assert length > HEAD_BYTES
    assert read == [(".txnlog", 0, HEAD_BYTES), (".txnlog", length, 0)], (
        "only the check whether it was replaced or has grown"
    )


def test_output_with_a_vote_and_without_a_decision_does_not_count_yet(run: Run) -> None:
    watch = LiveCheck(run.question)
    run.do_epoch(RECORDS[:10])
    part = run.vote(RECORDS[10:20])
    assert watch.poll().outputs[0].verdict.committed == 10
    run.decide(part)
    assert watch.poll().outputs[0].verdict.committed == 10
    run.show(part)
    assert watch.poll().outputs[0].verdict.committed == 20


def test_visible_before_the_decision_is_a_violation_even_if_the_bytes_are_right(run: Run) -> None:
    watch = LiveCheck(run.question)
    run.do_epoch(RECORDS[:10])
    part = run.vote(RECORDS[10:20])
    run.show(part)
    report = watch.poll()
    assert report.outcome is Outcome.VIOLATED
    assert report.outputs[0].verdict.uncommitted == part.end - part.start
    run.decide(part)
    assert watch.poll().outcome is Outcome.VIOLATED, "a violation stays in the verdict"
    assert judge(replace(run.question, is_complete=False)).is_clean, "later this can no longer be found"


def test_a_round_record_that_names_another_attempt_does_not_excuse_it(run: Run) -> None:
    part = run.vote(RECORDS)
    run.decide(replace(part, txn=run.name(run.epoch, attempt=2)))
    run.show(part)
    assert LiveCheck(run.question).poll().outputs[0].verdict.uncommitted == part.end
    report = judge(run.question)
    assert report.outcome is Outcome.VIOLATED
    assert "first uncommitted: record 0 of the transaction log" in report.text()


@pytest.mark.parametrize(
    ("records", "kind"),
    [(RECORDS[11:20], "lost"), (RECORDS[9:19], "doubled"), ([b"stranger\n"], "corrupt")],
)
def test_damage_is_found_and_named_at_the_next_poll(run: Run, records: list[bytes], kind: str) -> None:
    watch = LiveCheck(run.question)
    run.do_epoch(RECORDS[:10])
    assert watch.poll().is_clean
    run.do_epoch(records)
    report = watch.poll()
    assert report.outcome is Outcome.VIOLATED
    assert set(report.outputs[0].verdict.first) == {kind}
    assert watch.poll() == report


def test_a_driver_that_takes_over_keeps_what_is_decided(run: Run, tmp_path: Path) -> None:
    watch = LiveCheck(run.question)
    for number in range(5):
        run.do_epoch(RECORDS[10 * number : 10 * number + 10])
    assert watch.poll().is_clean
    run.checkpoint = Checkpoint.claim(tmp_path / "checkpoint", name="app", fingerprint="f")
    assert watch.poll().is_clean
    run.do_epoch(RECORDS[50:60])
    assert watch.poll().is_clean
    (tmp_path / "checkpoint" / "CURRENT").write_text("3\n")  # a successor that has not made its copy yet
    run.do_epoch(RECORDS[60:70])
    assert watch.poll().is_clean


def test_acknowledged_records_that_are_lost_are_reported(run: Run, tmp_path: Path) -> None:
    acks = AckLog(tmp_path / "acks")
    acks.record(stream_id_of(run.input), len(b"".join(RECORDS[:12])), 0.0)
    acks.close()
    run.do_epoch(RECORDS[:10])
    run.do_epoch(RECORDS[15:20])
    question = replace(run.question, acks=[tmp_path / "acks"])
    for report in (judge(question), LiveCheck(question).poll()):
        verdict = report.outputs[0].verdict
        assert verdict.acknowledged_lost == 3
        assert "3 acknowledged but lost" in report.text()
    assert LiveCheck(question).poll().outputs[0].verdict.lost == 5
    assert judge(question).outputs[0].verdict.lost == 85


def test_a_directory_that_is_not_a_checkpoint_is_reported_in_one_sentence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the checkpoint of a pipeline"):
        LiveCheck(replace(run.question, checkpoint=tmp_path / "output"))


def test_if_no_record_is_left_to_name_what_is_visible_the_decision_is_unknown(run: Run) -> None:
    run.do_epoch(RECORDS)
    for path in (run.checkpoint.directory / "rounds").iterdir():
        path.unlink()
    report = judge(run.question)
    assert report.outcome is Outcome.UNKNOWN
    assert "No round record" in report.text()
