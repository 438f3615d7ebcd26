"""Executes docs/tutorial.md: its files are found, and its test passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"`(\w+\.py)`[^`]*?\n\n```py(?:thon)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PATIENCE_S = 60


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_file_of_the_tutorial_is_found() -> None:
    assert sorted(FILES) == [
        "big_spenders.py",
        "big_spenders_2.py",
        "check.py",
        "many_orders.py",
        "test_big_spenders.py",
        "test_upgrade.py",
    ]


@pytest.mark.parametrize("name", ["test_big_spenders.py", "test_upgrade.py"])
def test_the_tests_of_the_tutorial_pass(place: Path, name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
