"""`procession verify` reads committed bytes only, and gives one verdict and the status 0 or 1."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from procession.commit.round_record import ROUNDS_KEPT
from procession.connectors.epochs_sink import file_name
from procession.errors import ConfigError
from procession.sdk.transaction_log import TRANSACTIONS_KEPT, Transaction, TransactionLog
from procession.verify.comparison import ComparisonRequest, judge, run_verify, verify
from procession.verify.live_check import LiveCheck
from procession.verify.order import PromisedOrder
from procession.verify.sink_outputs import committed_output
from procession.verify.verifier import Outcome

GOOD = b"".join(b"record-%d\n" % number for number in range(100))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_bytes(GOOD)
    return path


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    return path


def write(sink: Path, data: bytes, transactions: list[tuple[int, int, bool]], instance: str = "app-0") -> None:
    (sink / f"{instance}.data").write_bytes(data)
    log = TransactionLog(sink / f"{instance}.txnlog")
    log.open()
    for number, (start, end, commit) in enumerate(transactions):
        log.vote(Transaction(f"t{number}:c_id={number}", start, end), True)
        log.decide(f"t{number}:c_id={number}", commit)
    log.close()


def test_committed_output_that_equals_the_input_is_clean(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(sink, GOOD, [(0, 500, True), (500, len(GOOD), True)])
    assert run_verify(ComparisonRequest([source], sink)) == 0
    assert (
        capsys.readouterr().out
        == "app-0: 100 records: 0 lost, 0 doubled, 0 out of order\nshown: effectively-once\nverdict: clean\n"
    )


def test_the_connections_of_a_sink_are_one_output_if_the_order_is_per_key(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last digit is the key. The file of the tenth connection is read after that of the ninth."""
    lines = GOOD.splitlines(keepends=True)
    for number in (0, 2, 10):
        own = b"".join(line for line in lines if {0: b"01", 2: b"2345", 10: b"6789"}[number].find(line[-2:-1]) >= 0)
        write(sink, own + b"more", [(0, len(own), True)], f"app-out-{number}")
    keyed = ComparisonRequest([source], sink, order=PromisedOrder.KEY, key_of=lambda line: line[-1:])
    assert run_verify(keyed) == 0
    assert capsys.readouterr().out.startswith("app-out, 3 connections: 100 records: 0 lost, 0 doubled, 0 out of order")
    assert run_verify(replace(keyed, instance="app-out"), as_json=True) == 0
    (document,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (document["instance"], document["connections"], document["uncommitted_bytes"]) == ("app-out", 3, 12)
    assert run_verify(replace(keyed, instance="app-out-2")) == 1, "one connection alone does not have every record"
    assert run_verify(ComparisonRequest([source], sink)) == 1, "a total order is promised to one output only"
    printed = b"".join(committed_output(sink, "app-out"))
    assert [line[-1:] for line in printed.splitlines()[-3:]] == [b"7", b"8", b"9"]


def test_a_key_in_two_outputs_of_a_sink_is_out_of_order(source: Path, sink: Path) -> None:
    lines = GOOD.splitlines(keepends=True)
    for number in range(2):
        own = b"".join(line for place, line in enumerate(lines) if place // 10 % 2 == number)
        write(sink, own, [(0, len(own), True)], f"app-out-{number}")
    report = judge(ComparisonRequest([source], sink, order=PromisedOrder.KEY, key_of=lambda line: line[-1:]))
    assert (report.outputs[0].verdict.disordered, report.outputs[0].verdict.lost) == (40, 0)


def test_a_watch_finds_the_connections_of_a_sink_as_they_appear(source: Path, sink: Path) -> None:
    lines = GOOD.splitlines(keepends=True)
    watch = LiveCheck(ComparisonRequest([source], sink, order=PromisedOrder.KEY, key_of=lambda line: line[-1:]))
    shares = [b"".join(line for line in lines if (line[-2:-1] < b"5") == is_low) for is_low in (True, False)]
    for number, own in enumerate(shares):
        write(sink, own, [(0, len(own), True)], f"app-out-{number}")
        (output,) = watch.poll().outputs
        assert (output.outcome, output.verdict.records, output.connections) == (
            Outcome.CLEAN,
            50 * (number + 1),
            number + 1,
        )
    write(sink, lines[0] * 2, [(0, 2 * len(lines[0]), True)], "app-out-2")
    assert watch.poll().outcome is Outcome.VIOLATED
    watch.close()


def test_uncommitted_output_does_not_count(source: Path, sink: Path) -> None:
    write(sink, GOOD + b"prepared\n", [(0, len(GOOD), True), (len(GOOD), len(GOOD) + 9, False)])
    report = verify([source], sink)
    assert report.is_clean
    assert "9 bytes after that are not committed" in report.text()


def test_an_undecided_end_is_lost_so_far(source: Path, sink: Path) -> None:
    write(sink, GOOD, [(0, 90, True), (90, len(GOOD), False)])
    report = verify([source], sink)
    assert report.outcome is Outcome.VIOLATED
    assert report.outputs[0].verdict.lost == 100 - 10
    assert "first lost: record 10 of the input: 'record-10'" in report.text()


def test_committed_bytes_that_the_data_file_lacks_are_damage(source: Path, sink: Path) -> None:
    write(sink, GOOD[:-10], [(0, len(GOOD), True)])
    report = verify([source], sink)
    assert not report.is_clean
    assert "committed output is missing" in report.text()
    (sink / "app-0.data").unlink()
    assert verify([source], sink).outcome is Outcome.VIOLATED


def test_a_gap_between_committed_ranges_is_damage_even_if_all_records_are_there(source: Path, sink: Path) -> None:
    write(sink, GOOD[:90] + b"x" * 10 + GOOD[90:], [(0, 90, True), (100, len(GOOD) + 10, True)])
    report = verify([source], sink)
    assert report.outputs[0].verdict.is_clean
    assert report.outcome is Outcome.VIOLATED
    assert "do not follow each other" in report.text()


def test_nothing_committed_is_unknown_and_never_status_0(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(sink, GOOD, [])
    assert run_verify(ComparisonRequest([source], sink)) == 1
    out = capsys.readouterr().out
    assert "Nothing is committed" in out
    assert out.endswith("verdict: unknown\n")


def test_json_has_the_counts_and_the_first_offenders(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = GOOD.replace(b"record-7\n", b"record-8\n", 1)
    write(sink, damaged, [(0, len(damaged), True)])
    assert run_verify(ComparisonRequest([source], sink), as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["records"], document["lost"], document["doubled"]) == ("violated", 100, 1, 1)
    assert document["outputs"][0]["first"]["lost"] == {"where": "input", "number": 7, "record": "'record-7'"}


def test_each_instance_is_checked_alone_and_one_failure_is_enough(source: Path, sink: Path) -> None:
    write(sink, GOOD, [(0, len(GOOD), True)], "first")
    write(sink, GOOD + b"record-0\n", [(0, len(GOOD) + 9, True)], "second")
    report = verify([source], sink)
    assert [output.outcome for output in report.outputs] == [Outcome.CLEAN, Outcome.VIOLATED]
    assert report.outcome is Outcome.VIOLATED
    assert verify([source], sink, "first").is_clean


def test_several_inputs_may_interleave(source: Path, sink: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(b"x\ny")
    data = b"x\n" + GOOD + b"y\n"
    write(sink, data, [(0, len(data), True)])
    assert verify([source, other], sink).is_clean


@pytest.mark.parametrize("instance", [None, "nobody"])
def test_a_directory_without_output_is_reported_with_a_next_step(
    source: Path, sink: Path, instance: str | None
) -> None:
    with pytest.raises(ConfigError, match="nothing to compare") as error:
        verify([source], sink, instance)
    assert error.value.next_step


def test_an_unreadable_input_is_reported_in_one_sentence(sink: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.txt cannot be read: No such file"):
        verify([tmp_path / "nowhere.txt"], sink)
    with pytest.raises(ConfigError, match="Is a directory"):
        verify([tmp_path], sink)


# A directory of epochs


def write_epochs(sink: Path, data: bytes, ends: list[int], instance: str = "app-0") -> Path:
    directory = sink / f"{instance}.epochs"
    directory.mkdir()
    log = TransactionLog(sink / f"{instance}.txnlog")
    log.open()
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        transaction = Transaction(f"t{number}:c_id={number}", start, end)
        log.vote(transaction, True)
        log.decide(transaction.txn_id, True)
        (directory / file_name(transaction)).write_bytes(data[start:end])
    log.close()
    return directory


def test_a_directory_of_epochs_is_verified_and_printed_like_a_file(source: Path, sink: Path) -> None:
    write_epochs(sink, GOOD, [300, 300, 777, len(GOOD)])
    assert verify([source], sink).is_clean
    assert b"".join(committed_output(sink, None)) == GOOD
    watch = LiveCheck(ComparisonRequest([source], sink))
    assert [output.verdict.committed for output in watch.poll().outputs] == [100]
    watch.close()


def test_a_file_of_an_epoch_that_is_gone_changed_or_out_of_place_is_damage(source: Path, sink: Path) -> None:
    directory = write_epochs(sink, GOOD, [300, 777, len(GOOD)])
    first, second, third = sorted(directory.iterdir())
    text = second.read_bytes()
    second.write_bytes(text.replace(b"4", b"5", 1))
    assert verify([source], sink).outcome is Outcome.VIOLATED
    second.write_bytes(text[:-1])
    (output,) = verify([source], sink).outputs
    assert "The directory of epochs ends at byte 776" in output.damage
    second.unlink()
    (output,) = verify([source], sink).outputs
    assert "The directory of epochs ends at byte 300, but the transaction log has committed" in output.damage
    second.write_bytes(text)
    third.rename(directory / third.name.replace("777", "778", 1))
    assert verify([source], sink).outcome is Outcome.VIOLATED
    first.unlink()
    assert verify([source], sink).outcome is Outcome.VIOLATED


def test_printed_output_cannot_be_verified(source: Path, sink: Path) -> None:
    write(sink, GOOD, [(0, len(GOOD), True)])
    (sink / "app-0.data").rename(sink / "app-0.printed")
    with pytest.raises(ConfigError, match="nothing to compare"):
        verify([source], sink)


def test_a_log_that_was_compacted_is_verified_as_before(source: Path, sink: Path) -> None:
    (sink / "app-0.data").write_bytes(GOOD)
    log = TransactionLog(sink / "app-0.txnlog", entries_max=8, transactions_kept=2)
    log.open()
    for number, (start, end) in enumerate(pairwise(range(0, len(GOOD) + 1, 10))):
        log.vote(Transaction(f"t{number}:c_id={number}", start, end), True)
        log.decide(f"t{number}:c_id={number}", True)
        log.compact()
    log.close()
    assert b'"base"' in (sink / "app-0.txnlog").read_bytes()
    assert verify([source], sink).is_clean


def test_a_compacted_log_names_every_transaction_that_a_round_record_may_name() -> None:
    """Otherwise the base of the log, which has the id of its last transaction and the positions of all, would be
    undecided."""
    assert TRANSACTIONS_KEPT >= 2 * ROUNDS_KEPT
