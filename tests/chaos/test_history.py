"""The report of a run: recoveries, the verdict and the HTML page."""

from __future__ import annotations

import re

from procession.chaos.history import History, RunFailure, ScenarioSpan
from procession.chaos.html_report import page
from procession.chaos.recovery_times import Recoveries, quantile
from procession.verify.verdict import Outcome, Verdict


def clean() -> History:
    history = History(seed=7)
    history.spans.append(ScenarioSpan("crash-sink", 0.0, 9.5, 1_000))
    history.recoveries.hit("sink-left", 1.0)
    history.recoveries.back("sink-left", 2.5)
    history.absences.append(("sink-left", 1.0, 2.5))
    history.event(1.0, "sink-left", "kill on sink-left <now>")
    history.samples += [(0.0, 0), (5.0, 500), (10.0, 1_000)]
    history.verdicts = {"left": Verdict(Outcome.CLEAN, 1_000, 1_000)}
    history.committed, history.seconds = 1_000, 10.0
    return history


def test_a_recovery_is_timed_only_if_no_other_part_was_down() -> None:
    recoveries = Recoveries()
    recoveries.hit("gateway", 1.0)
    recoveries.back("gateway", 2.0)
    recoveries.hit("gateway", 10.0)
    recoveries.hit("sink-left", 10.5)
    recoveries.back("sink-left", 11.0)
    recoveries.back("gateway", 12.0)
    assert recoveries.times_s["gateway"] == [1.0]
    assert not recoveries.times_s["sink-left"]
    assert recoveries.figures()["gateway"] == {"kills": 2, "recovered": 2, "timed": 1, "p50_s": 1.0, "p99_s": 1.0}


def test_a_part_that_fails_again_before_its_recovery_has_recovered_once() -> None:
    recoveries = Recoveries()
    for now in (1.0, 1.2, 1.4):
        recoveries.hit("source-0", now)
    recoveries.back("source-0", 3.0)
    assert (recoveries.events, recoveries.recovered["source-0"], recoveries.times_s["source-0"]) == (3, 1, [])


def test_a_quantile_of_few_values_is_one_of_them() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0], 0.99) == 3.0


def test_a_run_is_clean_only_if_all_output_was_compared() -> None:
    assert clean().outcome is Outcome.CLEAN
    stopped = clean()
    stopped.was_stopped = True
    assert stopped.outcome is Outcome.UNKNOWN
    unseen = clean()
    unseen.verdicts = {}
    assert unseen.outcome is Outcome.UNKNOWN
    failed = clean()
    failed.failures.append(RunFailure("stall", "nothing was committed", "crash-sink", "story"))
    assert failed.outcome is Outcome.VIOLATED
    assert "stall in crash-sink: nothing was committed" in failed.sentence()


def test_the_verdict_counts_events_per_hour_by_part() -> None:
    sentence = clean().sentence()
    assert sentence.startswith("1 crashes, 1,000 records: 0 lost, 0 doubled, 0 out of order; clean (seed 7, 10 s)")
    assert "360 kill-and-restart events an hour (sink 1), 0 pauses and 0 other faults, in 1 scenarios" in sentence
    assert "sink: 1 killed, 1 back at work, p50 1.5 s, p99 1.5 s" in sentence


def test_the_page_loads_no_other_file_and_has_the_plot_and_the_figures() -> None:
    history = clean()
    history.failures.append(RunFailure("death", "gateway ended", "crash-sink", "<events> of all parts"))
    text = page(history)
    assert not re.search(r"(src|href)=|https?://", text)
    assert "<svg" in text
    assert "sink-left away for 1.50 s" in text
    assert "&lt;events&gt; of all parts" in text
    assert '"events_per_hour": 360' in text.replace("&quot;", '"')
