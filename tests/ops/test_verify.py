"""`procession verify`: committed bytes only, one clear verdict, status 0 or 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.chaos.verifier import Outcome
from procession.errors import ConfigError
from procession.ops.verify import Question, run_verify, verify
from procession.sdk.txnlog import Transaction, TxnLog

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
    log = TxnLog(sink / f"{instance}.txnlog")
    log.open()
    for number, (start, end, commit) in enumerate(transactions):
        log.vote(Transaction(f"t{number}:c_id={number}", start, end), True)
        log.decide(f"t{number}:c_id={number}", commit)
    log.close()


def test_committed_output_that_equals_the_input_is_clean(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(sink, GOOD, [(0, 500, True), (500, len(GOOD), True)])
    assert run_verify(Question([source], sink)) == 0
    assert (
        capsys.readouterr().out
        == "app-0: 100 records: 0 lost, 0 doubled, 0 out of order\nshown: effectively-once\nverdict: clean\n"
    )


def test_what_is_not_committed_does_not_exist(source: Path, sink: Path) -> None:
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
    assert "committed output is gone" in report.text()
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
    assert run_verify(Question([source], sink)) == 1
    out = capsys.readouterr().out
    assert "Nothing is committed" in out
    assert out.endswith("verdict: unknown\n")


def test_json_has_the_counts_and_the_first_offenders(
    source: Path, sink: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = GOOD.replace(b"record-7\n", b"record-8\n", 1)
    write(sink, damaged, [(0, len(damaged), True)])
    assert run_verify(Question([source], sink), as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["records"], told["lost"], told["doubled"]) == ("violated", 100, 1, 1)
    assert told["outputs"][0]["first"]["lost"] == {"where": "input", "number": 7, "record": "'record-7'"}


def test_each_instance_is_judged_alone_and_one_bad_one_is_enough(source: Path, sink: Path) -> None:
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
def test_a_directory_without_output_is_one_sentence_and_a_next_step(
    source: Path, sink: Path, instance: str | None
) -> None:
    with pytest.raises(ConfigError, match="nothing to compare") as error:
        verify([source], sink, instance)
    assert error.value.next_step


def test_an_unreadable_input_is_one_sentence(sink: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.txt cannot be read: No such file"):
        verify([tmp_path / "nowhere.txt"], sink)
    with pytest.raises(ConfigError, match="Is a directory"):
        verify([tmp_path], sink)
