"""The verdict of the harness on a fake cluster: three values, each with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from procession.chaos.chaos_workload import Load
from procession.chaos.cluster_view import Cluster
from procession.chaos.harness import Harness
from procession.chaos.history import History, RunFailure
from procession.chaos.html_report import page
from procession.chaos.scenario import ScenarioRun
from procession.chaos.screen import Screen
from procession.verify.verdict import Outcome
from tests.chaos.fake_cluster import FakeCluster

LOAD = Load(rate=10.0, seconds=1.0)
QUIET = ScenarioRun("quiet", ())
AGAIN = "and all of them again at the end"


@pytest.fixture
def fake(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path)


def harness(fake: FakeCluster) -> Harness:
    return Harness(cast(Cluster, fake), load=LOAD, deadline_s=0.3)


def test_a_run_that_was_compared_to_its_end_is_clean(fake: FakeCluster) -> None:
    history = harness(fake).run([QUIET])
    assert history.outcome is Outcome.CLEAN, history.sentence()
    assert AGAIN in page(history)
    figures = history.figures()
    assert figures["decided_transactions"] == figures["acknowledged_streams"] == len(list(fake.directory.glob("*.txt")))


def test_a_lost_tail_is_a_violation_that_names_it_and_says_that_it_was_acknowledged(fake: FakeCluster) -> None:
    fake.swallowed = 1
    history = harness(fake).run([QUIET])
    (failure,) = history.failures
    assert failure.kind == "violation"
    assert failure.sentence.startswith("lost: left has 9 of 10 records of stream s0000. ")
    lost = len(list(fake.directory.glob("*.txt")))
    assert history.figures()["lost"] == history.figures()["acknowledged_lost"] == lost
    sentence = f"{9 * lost} records: {lost} lost, 0 doubled, 0 out of order, {lost} acknowledged but lost; violated"
    assert sentence in history.sentence()


def test_an_empty_run_is_unknown_with_a_reason(fake: FakeCluster) -> None:
    history = harness(fake).run([])
    assert (history.outcome, history.failures) == (Outcome.UNKNOWN, [])
    assert "unknown at left: The input is empty" in history.sentence()


def not_compared(history: History) -> bool:
    document = json.loads(json.dumps(history.figures()))
    return document["lost"] is None and "not compared to the end" in history.sentence() and AGAIN not in page(history)


def test_a_damaged_file_of_a_sink_is_a_violation(fake: FakeCluster) -> None:
    fake.instances()["left"].with_suffix(".txnlog").write_bytes(b"00000000 {}\n")
    history = harness(fake).run([QUIET])
    assert history.outcome is Outcome.VIOLATED
    assert "is damaged at byte 0" in history.failures[0].sentence
    assert history.failures[0].log_tails == "the events of all parts"
    assert not_compared(history)


def test_a_harness_that_fails_itself_says_so_with_its_trace_and_judges_nothing(fake: FakeCluster) -> None:
    def broken() -> Iterator[ScenarioRun]:
        yield QUIET
        raise KeyError("nowhere")

    history = harness(fake).run(broken())
    assert history.outcome is Outcome.UNKNOWN
    assert "unknown in quiet: the harness itself failed: KeyError: 'nowhere'" in history.sentence()
    assert "Traceback" in page(history)
    assert not_compared(history)


def test_a_run_that_was_stopped_has_counted_nothing(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.supervisor, "watch", lambda timeout_s: False)
    history = harness(fake).run([QUIET])
    assert history.was_stopped
    assert history.outcome is Outcome.UNKNOWN
    assert not_compared(history)


def test_the_screen_calls_nothing_clean_before_there_is_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    for history, text in (
        (History(0), "verdict nothing to compare yet"),
        (History(0, committed=1), "verdict clean so far"),
        (History(0, committed=1, failures=[RunFailure("death", "it ended", "")]), "verdict violated"),
    ):
        Screen().show(history)
        assert text in capsys.readouterr().err
