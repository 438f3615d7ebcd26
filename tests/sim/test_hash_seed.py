"""A seed is the same history in every Python process: no order of a set or of hashes decides anything, and no run that
came before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from procession.sim.lost_machine_runs import WORLDS
from procession.sim.runner import plan_of

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = (17, 1, 9)
HASH_SEEDS = ("0", "1", "2")


def histories(hash_seeds: tuple[str, ...], orders: tuple[tuple[int, ...], ...]) -> set[frozenset[str]]:
    """Return the output of processes with these hash seeds, each of which runs the seeds in one of these orders."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim.history_digest", *map(str, seeds)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, seeds in zip(hash_seeds, orders, strict=True)
    ]
    found = {frozenset(process.communicate()[0].splitlines()) for process in processes}
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found


def test_a_seed_is_the_same_history_under_any_seed_of_the_hashes_and_after_any_other_run() -> None:
    assert max(plan_of(seed).gateways for seed in SEEDS) > 1
    found = histories(HASH_SEEDS, (SEEDS, SEEDS, SEEDS[::-1]))
    assert len(found) == 1
    assert len(found.pop()) == len(SEEDS) * (1 + len(WORLDS))
