"""A part with a spare, as real processes: which one takes over and when, and what remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.supervisor import part as parts
from procession.supervisor.supervisor import Supervisor
from tests.supervisor.test_supervisor import FOREVER, QUICK, is_gone, part, telling, watch_until

WAIT = "import sys\nif 'spare' in sys.argv and not sys.stdin.readline(): sys.exit(0)\n"


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(parts, "SPARE_PAUSE_S", 0.05)
    with Supervisor(tmp_path / "logs", QUICK) as supervisor:
        yield supervisor


def start(supervisor: Supervisor, report: Path, code: str = "") -> int:
    """Start a part that drives and its spare, which waits for its turn, and return the spare's process id."""
    supervisor.start(part("driver", code + WAIT + telling(report) + FOREVER, report, spare=("spare",)))
    assert supervisor.wait_ready("driver")
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") is not None)
    spare = supervisor.spare_pid("driver")
    assert spare is not None
    return spare


def test_the_spare_takes_over_when_its_part_is_killed_and_another_one_waits(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    report = tmp_path / "told"
    spare = start(supervisor, report)
    assert int(report.read_text()) == supervisor.pid("driver") != spare, "a spare does nothing before its turn"
    supervisor.kill("driver")
    watch_until(supervisor, lambda: int(report.read_text()) == spare)
    assert supervisor.pid("driver") == spare
    assert supervisor.restarts == {"driver": 1}
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") not in (None, spare))


def test_a_spare_that_dies_is_replaced_and_its_part_continues(supervisor: Supervisor, tmp_path: Path) -> None:
    spare = start(supervisor, tmp_path / "told")
    driver = supervisor.pid("driver")
    os.kill(spare, signal.SIGKILL)
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") not in (None, spare))
    assert supervisor.pid("driver") == driver
    assert supervisor.restarts == {"driver": 0}


def test_a_part_whose_spare_has_just_died_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    spare = start(supervisor, tmp_path / "told")
    driver = supervisor.pid("driver")
    os.kill(spare, signal.SIGKILL)
    supervisor.kill("driver")
    watch_until(supervisor, lambda: supervisor.pid("driver") not in (None, driver, spare))
    assert supervisor.wait_ready("driver")


def test_no_process_of_a_spare_remains_after_the_supervisor_has_ended(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs", QUICK) as supervisor:
        spare = start(supervisor, tmp_path / "told")
        driver = supervisor.pid("driver")
    assert driver is not None
    assert is_gone(spare)
    assert is_gone(driver)


def test_a_spare_whose_supervisor_is_gone_ends_by_itself(supervisor: Supervisor, tmp_path: Path) -> None:
    spare = start(supervisor, tmp_path / "told")
    child = supervisor._children["driver"]
    assert child._spare is not None
    assert child._spare.popen.stdin is not None
    child._spare.popen.stdin.close()  # the signal that the kernel sends when the supervisor ends
    assert child._spare.popen.wait(30) == 0
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") not in (None, spare))


def test_a_successor_runs_only_after_its_part_was_halted_and_replaced(supervisor: Supervisor, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    start(supervisor, old)
    driver, current = supervisor.pid("driver"), supervisor.part("driver")
    assert driver is not None
    following = part("driver", WAIT + telling(new) + FOREVER, new, spare=("spare",))
    successor = supervisor.prepare("driver", following)
    supervisor.kill("driver")  # the old program, not its successor, is started again
    watch_until(supervisor, lambda: supervisor.is_ready("driver") and supervisor.pid("driver") != driver)
    assert not new.exists()
    supervisor.halt("driver")
    assert supervisor.watch(0.2)
    assert supervisor.pid("driver") is None, "a part that is halted stays so"
    supervisor.replace("driver", following)
    watch_until(supervisor, lambda: supervisor.is_ready("driver"))
    assert int(new.read_text()) == supervisor.pid("driver") == successor
    supervisor.halt("driver")
    supervisor.replace("driver", current)
    watch_until(supervisor, lambda: supervisor.is_ready("driver"))
    assert int(old.read_text()) == supervisor.pid("driver")


def test_a_cancelled_successor_leaves_the_part_with_its_spare(supervisor: Supervisor, tmp_path: Path) -> None:
    start(supervisor, tmp_path / "told")
    successor = supervisor.prepare("driver", supervisor.part("driver"))
    assert supervisor.is_successor_alive("driver")
    supervisor.dismiss_successor("driver")
    assert is_gone(successor)
    watch_until(supervisor, lambda: supervisor.spare_pid("driver") is not None)


def test_a_part_that_was_started_early_runs_after_its_turn_and_is_restarted_without(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    report, turns = tmp_path / "told", tmp_path / "turns"
    take = f"import sys\nif 'early' in sys.argv: open({str(turns)!r}, 'w').write(sys.stdin.readline())\n"
    driver = part("driver", take + telling(report) + FOREVER, report)
    supervisor.start(part("gateway", telling(tmp_path / "gateway") + FOREVER, tmp_path / "gateway"))
    supervisor.start_early(replace(driver, spare=("early",)))
    assert supervisor.wait_ready("gateway")
    assert supervisor.pid("driver") is None
    assert not report.exists(), "it does nothing before its turn"
    supervisor.replace("driver", replace(driver, turn=b"go sink=1\n"))
    assert supervisor.wait_ready("driver")
    assert turns.read_text() == "go sink=1\n"
    assert supervisor.restarts == {"gateway": 0, "driver": 0}
    early = supervisor.pid("driver")
    supervisor.kill("driver")
    watch_until(supervisor, lambda: supervisor.pid("driver") not in (None, early))
    assert supervisor.wait_ready("driver")


def test_an_early_part_that_has_died_is_started_anew(supervisor: Supervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    die = "import sys\nif 'early' in sys.argv: sys.exit(1)\n"
    driver = part("driver", die + telling(report) + FOREVER, report)
    supervisor.start_early(replace(driver, spare=("early",)))
    early = supervisor._children["driver"]._successor
    assert early is not None
    assert early.popen.wait(30) == 1
    supervisor.replace("driver", driver)
    assert supervisor.wait_ready("driver")
    assert supervisor.restarts == {"driver": 0}
