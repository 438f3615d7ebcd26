"""The exits that a step allows, and how long its fault lasts. No cluster is started."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from procession import faults
from procession.chaos.cluster_view import EXIT_AGAIN, EXIT_CLEAR, Cluster, Death
from procession.chaos.fault_injector import AllowedExit, FaultInjector, Undo
from procession.chaos.faulty_sink import Behaviour, injected_faults_file
from procession.chaos.history import History
from procession.chaos.scenario import STANDARD, FaultAction, FaultStep
from tests.chaos.fake_cluster import FakeCluster

FULL = os.strerror(errno.ENOSPC)


def death(status: int, text: str) -> Death:
    return Death("gateway", status, 0.0, False, text)


@pytest.mark.parametrize(
    ("status", "text", "is_covered"),
    [
        (EXIT_CLEAR, f"error: Cannot write log: {FULL}. Free space.", True),
        (EXIT_CLEAR, "", False),
        (EXIT_CLEAR, "error: Another process holds log.", False),
        (1, f"error: Cannot write log: {FULL}. Free space.", False),
        (1, "", False),
        (0, FULL, False),
        (-signal.SIGKILL, FULL, False),
        (EXIT_CLEAR, f"Traceback (most recent call last)\nOSError: {FULL}", False),
    ],
)
def test_a_bad_disk_excuses_only_an_exit_whose_message_names_it(status: int, text: str, is_covered: bool) -> None:
    assert AllowedExit((EXIT_CLEAR,), FULL).covers(death(status, text)) is is_covered


def test_a_dependant_may_fail_once_after_the_part_that_it_needs_was_away(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    history = History(0, cluster=replace(STANDARD, dependants={"gateway": ("left", "right")}))
    injector = FaultInjector(cast(Cluster, cluster), history)
    injector.do(FaultStep(FaultAction.NOTHING, "gateway"))
    injector.allowed_exits.clear()  # all parts have recovered
    failed = Death("left", EXIT_AGAIN, 0.0, False, "error: the connection was lost")
    assert injector.is_allowed_exit(failed)
    assert not injector.is_allowed_exit(failed)
    assert not injector.is_allowed_exit(replace(failed, part="right", status=EXIT_CLEAR))


def test_a_fault_that_waits_for_its_occasion_lasts_from_then_on_with_a_limit_on_the_wait() -> None:
    occasions: list[str] = []
    undo = Undo(2.0, "link", lambda: None, limit=20.0, has_happened=lambda: bool(occasions))
    assert not undo.is_due(3.0)
    assert undo.is_due(20.0)
    occasions.append("it came")
    assert not undo.is_due(19.0)
    assert not undo.is_due(20.9)
    assert undo.is_due(21.0)


def behave(path: Path, text: str) -> Behaviour:
    path.write_text(text)
    return Behaviour(path)


def test_a_faulty_sink_logs_the_faults_that_it_caused_and_nothing_else(tmp_path: Path) -> None:
    behaviour = behave(tmp_path / "behaviour", "abort_on=2")
    misdeeds = injected_faults_file(tmp_path / "behaviour")
    assert [behaviour.is_turn("abort_on"), behaviour.happens("abort_chance")] == [False, False]
    behaviour.delay("vote_delay_s")
    assert not misdeeds.exists()
    assert behaviour.is_turn("abort_on")
    assert misdeeds.read_text() == "abort_on\n"


def test_a_faulty_sink_with_a_bad_disk_ends_with_a_sentence_and_a_status_as_other_parts_do(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text("disk:sync")
    argv = [sys.executable, "-m", "procession.chaos.faulty_sink", str(tmp_path / "right"), "--listen", "127.0.0.1:0"]
    ended = subprocess.run(
        [*argv, "--behaviour", str(tmp_path / "behaviour")],
        env={**os.environ, faults.FILE_VARIABLE: str(fault)},
        capture_output=True,
        text=True,
        timeout=60.0,
    )
    assert ended.returncode == EXIT_AGAIN
    assert os.strerror(errno.EIO) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_faults_of_a_faulty_sink_are_drawn_from_its_seed(tmp_path: Path) -> None:
    def draws(seed: int) -> list[bool]:
        behaviour = behave(tmp_path / "behaviour", f"abort_chance=0.5,seed={seed}")
        return [behaviour.happens("abort_chance") for _ in range(40)]

    random.seed(1)
    once = draws(7)
    random.seed(2)
    assert once == draws(7)
    assert once != draws(8)
    assert 0 < sum(once) < 40
