"""Each guarantee on a running pipeline with kills at fault points: the verifier finds exactly the declared effects.

Kills are at fault points, so results do not depend on timing. Between the votes and the decision, an eager sink has
already shown the epoch; right after the decision, an epoch that is sent later has not been sent. A sink that dies while
it receives records has shown none of them; if no vote is awaited, their epoch is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.deployment.local_pipeline import COMMAND, DRIVER
from procession.deployment.settings import Settings
from procession.planner.guarantee import Guarantee
from procession.sdk.transaction_log import committed_ranges
from procession.storage.journal import read_journal
from procession.supervisor.part import Part
from procession.verify.comparison import ComparisonReport, ComparisonRequest, judge
from procession.verify.semantics import PROMISED, Semantics, is_within
from tests.walk.cluster import Cluster

pytestmark = pytest.mark.slow

APP = """
from procession import Pipeline
pipeline = Pipeline("level", guarantee={guarantee!r}, deterministic=True)
pipeline.source("lines").sink("out", to="file:output", idempotent={idempotent})
"""
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 500
BEFORE_DECISION = "driver:before-record"
AFTER_DECISION = "driver:before-phase2"
HALF_WAY = "sink:after-append"
SINK = "sink-0"


def crash_run(
    directory: Path, guarantee: str, points: list[str], *, idempotent: bool = False, part: str = DRIVER
) -> ComparisonReport:
    """Send records through a pipeline of this level while this part is killed at each of these points."""
    with Cluster(directory, APP.format(guarantee=guarantee, idempotent=idempotent), SETTINGS) as cluster:
        assert cluster.local.start()
        inputs, acks = [], []
        for number, point in enumerate(points):
            path, heard = directory / f"sent-{number}.txt", directory / f"sent-{number}.acks"
            path.write_bytes(b"".join(b"%d record %d\n" % (number, record) for record in range(RECORDS)))
            cluster.arm(point)
            to = ("--to", cluster.local.address, *cluster.local.producer_arguments)
            argv = (*COMMAND, "source", "file", str(path), *to, "--acks", str(heard))
            cluster.supervisor.start(Part(f"source-{number}", argv))
            cluster.until_dead(part)
            cluster.until_done(f"source-{number}")
            inputs.append(path)
            acks.append(heard)
        assert cluster.restarts(part) == len(points)
    is_decided = guarantee == Guarantee.EFFECTIVELY_ONCE and not idempotent
    checkpoint = directory / "checkpoint" if is_decided else None
    return judge(ComparisonRequest(inputs, directory / "output", checkpoint=checkpoint, acks=acks))


def test_effectively_once_is_clean(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "effectively-once", [BEFORE_DECISION])
    assert report.is_clean, report.text()
    assert report.semantics is Semantics.EFFECTIVELY_ONCE


def test_at_least_once_doubles_and_does_not_lose(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "at-least-once", [BEFORE_DECISION])
    verdict = report.outputs[0].verdict
    assert verdict.doubled > 0
    assert (verdict.lost, verdict.corrupt, verdict.disordered) == (0, 0, 0)
    assert report.semantics is PROMISED[Guarantee.AT_LEAST_ONCE]


def test_at_most_once_loses_and_does_not_double(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "at-most-once", [AFTER_DECISION])
    verdict = report.outputs[0].verdict
    assert verdict.lost > 0
    assert (verdict.doubled, verdict.corrupt, verdict.disordered) == (0, 0, 0)
    assert verdict.acknowledged_lost == verdict.lost, "its producer was told that it is safe"
    assert report.semantics is PROMISED[Guarantee.AT_MOST_ONCE]


def test_with_no_guarantee_records_are_lost_and_what_comes_out_is_correct_at_least(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "none", [HALF_WAY], part=SINK)
    verdict = report.outputs[0].verdict
    assert verdict.lost > 0, "the sink had it, died, and nobody sends it again"
    assert verdict.acknowledged_lost == verdict.lost, "its producer was told that it is safe"
    assert (verdict.corrupt, verdict.disordered) == (0, 0)
    assert report.semantics is not None
    assert report.semantics is not Semantics.EFFECTIVELY_ONCE
    assert is_within(report.semantics, PROMISED[Guarantee.NONE]), report.text()


def test_records_that_a_dying_sink_had_received_are_sent_again_if_its_vote_is_awaited(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "effectively-once", [HALF_WAY], part=SINK)
    assert report.is_clean, report.text()


def test_an_idempotent_sink_gets_the_same_positions_again_and_is_clean(tmp_path: Path) -> None:
    report = crash_run(tmp_path, "effectively-once", [BEFORE_DECISION], idempotent=True)
    assert report.is_clean, report.text()
    log = tmp_path / "output" / "level-out-0.txnlog"
    votes = [(entry["start"], entry["end"]) for entry in read_journal(log) if entry["op"] == "phase1"]
    again = [vote for vote in votes if vote[0] < vote[1] and votes.count(vote) > 1]
    assert again, "the epoch that was shown before the kill came again, at the same positions"
    assert len(committed_ranges(log)) == 1


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_every_level_has_a_promise(guarantee: Guarantee) -> None:
    assert guarantee in PROMISED
