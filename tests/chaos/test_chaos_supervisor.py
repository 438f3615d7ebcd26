"""The supervisor of a chaos run, with real processes: which exits count as deaths, and which deaths we caused."""

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
"""A part that keeps running: a supervisor whose parts are all done watches nothing."""


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChaosSupervisor]:
    monkeypatch.setattr(parts, "SPARE_PAUSE_S", 0.05)
    with ChaosSupervisor(tmp_path / "logs") as supervisor:
        supervisor.start(OTHER)
        yield supervisor


def death(supervisor: ChaosSupervisor) -> Death:
    watch_until(supervisor, lambda: bool(supervisor.deaths))
    return supervisor.deaths[0]


def ask_to_end(supervisor: ChaosSupervisor, report: Path, code: str) -> Death:
    supervisor.start(part("one", code + telling(report) + FOREVER, report))
    assert supervisor.wait_ready("one")
    supervisor.end("one")
    return death(supervisor)


def test_a_part_that_ends_unasked_counts_as_dead_and_is_restarted(
    supervisor: ChaosSupervisor,
) -> None:
    supervisor.start(part("one", "pass"))
    unasked = death(supervisor)
    assert (unasked.status, unasked.is_ours) == (0, False)
    watch_until(supervisor, lambda: len(supervisor.deaths) > 1)


def test_a_finite_part_is_done_only_with_status_0(supervisor: ChaosSupervisor) -> None:
    supervisor.finite |= {"one", "two"}
    supervisor.start(part("one", "pass"))
    watch_until(supervisor, lambda: supervisor.is_done("one"))
    assert not supervisor.deaths
    supervisor.start(part("two", "raise SystemExit(1)"))
    assert not death(supervisor).is_ours


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
def test_a_part_that_is_asked_to_end_must_end_in_an_orderly_way(
    supervisor: ChaosSupervisor, tmp_path: Path, code: str, is_finite: bool, is_ours: bool
) -> None:
    if is_finite:
        supervisor.finite.add("one")
    assert ask_to_end(supervisor, tmp_path / "told", code).is_ours is is_ours
    assert supervisor.wait_ready("one"), "the part is restarted"


def test_a_kill_explains_signal_9_and_nothing_else(supervisor: ChaosSupervisor, tmp_path: Path) -> None:
    supervisor.start(part("one", telling(tmp_path / "told") + FOREVER, tmp_path / "told"))
    assert supervisor.wait_ready("one")
    supervisor.kill("one")
    assert death(supervisor).is_ours
    supervisor.deaths.clear()
    supervisor.start(part("two", "raise SystemExit(1)"))
    pid = supervisor.pid("two")
    assert pid is not None
    wait_for_end([pid])
    supervisor.kill("two")  # the part has ended, and the supervisor has not noticed yet
    assert not death(supervisor).is_ours


def test_a_finite_part_that_ended_just_before_the_kill_is_done_and_reported(supervisor: ChaosSupervisor) -> None:
    supervisor.finite.add("one")
    supervisor.start(part("one", "pass"))
    pid = supervisor.pid("one")
    assert pid is not None
    wait_for_end([pid])
    supervisor.kill("one")
    assert death(supervisor).is_ours
    assert supervisor.is_done("one")


def test_a_spare_that_dies_is_reported(supervisor: ChaosSupervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    supervisor.start(part("driver", WAIT + telling(report) + FOREVER, report, spare=("spare",)))
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") is not None)
    os.kill(supervisor.spare_pid("driver") or 0, signal.SIGKILL)
    spare = death(supervisor)
    assert (spare.is_spare, spare.is_ours) == (True, False)
    assert str(spare) == "the spare of driver ended with signal 9"
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") is not None)


def test_a_part_that_is_not_ready_in_time_is_reported_and_restarted_without_limit(
    supervisor: ChaosSupervisor,
) -> None:
    supervisor.start(part("one", FOREVER, Path("nowhere"), ready_timeout_s=0.01))
    watch_until(supervisor, lambda: len(supervisor.deaths) > 5)
    assert {found.is_late for found in supervisor.deaths} == {True}
    assert supervisor.deaths[0].last_lines == "was not ready within 0.01 s"


def test_a_supervisor_that_is_stopped_does_not_wait_for_parts(supervisor: ChaosSupervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + telling(report) + FOREVER
    supervisor.start(part("deaf", deaf, report, stop_timeout_s=PATIENCE_S))
    assert supervisor.wait_ready()
    supervisor.ask_to_stop(signal.SIGINT)
    began = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert supervisor.pid("deaf") is None
