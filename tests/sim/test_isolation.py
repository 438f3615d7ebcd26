"""A simulated process uses only the simulated machine."""

from __future__ import annotations

import builtins
import os
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from procession.runtime.host_files import HOST_FILES, HostFileSystem
from procession.sim.runner import plan_of, run_plan

SEEDS = 40


def refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise AssertionError(f"a simulated process calls {name}")

    return refused


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    run_plan(plan_of(0))  # loads modules
    for name in ("open", "listdir", "rename", "unlink", "stat", "mkdir", "fsync", "urandom"):
        monkeypatch.setattr(os, name, refuse(f"os.{name}"))
    for name in (name for name in vars(HostFileSystem) if not name.startswith("_")):
        monkeypatch.setattr(HostFileSystem, name, refuse(f"HostFileSystem.{name}"))
    monkeypatch.setattr(builtins, "open", refuse("open"))
    monkeypatch.setattr(secrets, "randbits", refuse("secrets.randbits"))
    monkeypatch.setattr(uuid, "uuid4", refuse("uuid.uuid4"))


@pytest.mark.usefixtures("no_machine")
def test_a_simulated_run_uses_no_file_and_no_randomness_of_the_machine() -> None:
    with pytest.raises(AssertionError, match="calls HostFileSystem"):
        HOST_FILES.exists(Path("x"))
    assert [run_plan(plan_of(seed)).breach for seed in range(SEEDS)] == [None] * SEEDS
