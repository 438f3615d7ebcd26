"""The stage of a chaos run, with real processes: which ends are deaths, and which of them we asked for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.chaos.chaos_supervisor import ChaosSupervisor
from procession.chaos.cluster_view import Death
from procession.supervisor import part as parts
from tests.supervisor.test_spare import WAIT
from tests.supervisor.test_supervisor import FOREVER, PATIENCE_S, part, telling, wait_for_end, watch_until

ENDS = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(STATUS))\n"
RAISES = "import signal\ndef end(*_): raise ValueError\nsignal.signal(signal.SIGTERM, end)\n"
SAYS_TRACE = "print('Traceback (most recent call last)', flush=True)\n"
OTHER = part("other", FOREVER)
"""Somebody must be there: a stage whose parts are all done has nothing to watch."""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChaosSupervisor]:
    monkeypatch.setattr(parts, "SPARE_PAUSE_S", 0.05)
    with ChaosSupervisor(tmp_path / "logs") as stage:
        stage.start(OTHER)
        yield stage


def death(stage: ChaosSupervisor) -> Death:
    watch_until(stage, lambda: bool(stage.deaths))
    return stage.deaths[0]


def ask_to_end(stage: ChaosSupervisor, report: Path, code: str) -> Death:
    stage.start(part("one", code + telling(report) + FOREVER, report))
    assert stage.wait_ready("one")
    stage.end("one")
    return death(stage)


def test_a_part_that_ends_unasked_has_died_whatever_its_status_and_is_started_again(stage: ChaosSupervisor) -> None:
    stage.start(part("one", "pass"))
    one = death(stage)
    assert (one.status, one.is_ours) == (0, False)
    watch_until(stage, lambda: len(stage.deaths) > 1)


def test_who_has_an_end_of_its_own_is_done_with_status_0_alone(stage: ChaosSupervisor) -> None:
    stage.finite |= {"one", "two"}
    stage.start(part("one", "pass"))
    watch_until(stage, lambda: stage.is_done("one"))
    assert not stage.deaths
    stage.start(part("two", "raise SystemExit(1)"))
    assert not death(stage).is_ours


@pytest.mark.parametrize(
    ("code", "is_finite", "is_ours"),
    [
        (ENDS.replace("STATUS", "0"), False, True),
        (ENDS.replace("STATUS", "0") + SAYS_TRACE, False, True),
        (ENDS.replace("STATUS", "1"), False, False),
        ("", False, False),
        (ENDS.replace("STATUS", "0"), True, True),
        (ENDS.replace("STATUS", "1"), True, True),
        (ENDS.replace("STATUS", "3"), True, False),
        (RAISES, True, False),
    ],
)
def test_who_is_asked_to_end_must_do_so_in_an_orderly_way(
    stage: ChaosSupervisor, tmp_path: Path, code: str, is_finite: bool, is_ours: bool
) -> None:
    if is_finite:
        stage.finite.add("one")
    assert ask_to_end(stage, tmp_path / "told", code).is_ours is is_ours
    assert stage.wait_ready("one"), "it is started again"


def test_a_kill_explains_signal_9_and_nothing_else(stage: ChaosSupervisor, tmp_path: Path) -> None:
    stage.start(part("one", telling(tmp_path / "told") + FOREVER, tmp_path / "told"))
    assert stage.wait_ready("one")
    stage.kill("one")
    assert death(stage).is_ours
    stage.deaths.clear()
    stage.start(part("two", "raise SystemExit(1)"))
    pid = stage.pid("two")
    assert pid is not None
    wait_for_end([pid])
    stage.kill("two")  # it has ended by itself, and nobody has looked yet
    assert not death(stage).is_ours


def test_who_was_done_just_before_the_kill_is_done_and_told_of(stage: ChaosSupervisor) -> None:
    stage.finite.add("one")
    stage.start(part("one", "pass"))
    pid = stage.pid("one")
    assert pid is not None
    wait_for_end([pid])
    stage.kill("one")
    assert death(stage).is_ours
    assert stage.is_done("one")


def test_a_spare_that_dies_is_told_of(stage: ChaosSupervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    stage.start(part("driver", WAIT + telling(report) + FOREVER, report, spare=("spare",)))
    watch_until(stage, lambda: stage.spare_pid("driver") is not None)
    os.kill(stage.spare_pid("driver") or 0, signal.SIGKILL)
    one = death(stage)
    assert (one.is_spare, one.is_ours) == (True, False)
    assert str(one) == "the spare of driver ended with signal 9"
    watch_until(stage, lambda: stage.spare_pid("driver") is not None)


def test_who_is_not_ready_in_time_is_told_of_and_started_again_as_often_as_it_takes(stage: ChaosSupervisor) -> None:
    stage.start(part("one", FOREVER, Path("nowhere"), ready_timeout_s=0.01))
    watch_until(stage, lambda: len(stage.deaths) > 5)
    assert {found.is_late for found in stage.deaths} == {True}
    assert stage.deaths[0].last_lines == "was not ready within 0.01 s"


def test_who_is_asked_to_stop_waits_for_nobody(stage: ChaosSupervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + telling(report) + FOREVER
    stage.start(part("deaf", deaf, report, stop_timeout_s=PATIENCE_S))
    assert stage.wait_ready()
    stage.ask_to_stop(signal.SIGINT)
    began = time.monotonic()
    stage.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert stage.pid("deaf") is None
