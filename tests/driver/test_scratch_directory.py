"""Each driver has its own scratch directory, and the current driver removes unlocked ones."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from procession.driver import scratch_directory as scratch_module
from procession.driver.scratch_directory import ScratchDirectory
from procession.errors import FencedError

DIES = """
import os, sys
from pathlib import Path
from procession.driver.scratch_directory import ScratchDirectory

scratch = ScratchDirectory(Path(sys.argv[1]))
(scratch.directory / "block").write_bytes(b"0" * 100)
print(scratch.directory, flush=True)
os.kill(os.getpid(), 9)
"""


def in_charge() -> None:
    pass


def left_by_a_killed_driver(root: Path) -> Path:
    died = subprocess.run([sys.executable, "-c", DIES, root], capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    return Path(died.stdout.strip())


def test_directories_of_killed_drivers_are_removed_and_those_of_running_ones_are_kept(tmp_path: Path) -> None:
    left = left_by_a_killed_driver(tmp_path)
    living, own = ScratchDirectory(tmp_path), ScratchDirectory(tmp_path)
    (living.directory / "block").touch()
    own.clear_others(in_charge)
    assert not left.exists()
    assert (living.directory / "block").exists()
    assert own.directory.exists()
    living.close()
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_driver_removes_nothing(tmp_path: Path) -> None:
    left = left_by_a_killed_driver(tmp_path)

    def replaced() -> None:
        raise FencedError("driver 1 was replaced by driver 2 and stops")

    own = ScratchDirectory(tmp_path)
    with pytest.raises(FencedError):
        own.clear_others(replaced)
    assert (left / "block").exists()
    own.clear_others(in_charge)
    assert not left.exists()
    own.close()


def test_sockets_have_a_short_path_and_are_removed_with_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deep = tmp_path / ("d" * 80)
    own = ScratchDirectory(deep)
    assert own.sockets.parent == tmp_path
    assert own.sockets.is_dir()
    own.close()
    assert not own.sockets.exists()
    monkeypatch.setattr(scratch_module, "SOCKET_DIRECTORY_MAX", 1000)
    own = ScratchDirectory(deep)
    assert own.sockets == own.directory
    own.close()
