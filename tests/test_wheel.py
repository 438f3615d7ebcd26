"""The wheel that users install has every file of the package, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
APP = """
from procession import Pipeline

pipeline = Pipeline("words")
pipeline.source("lines", codec="text").flat_map(str.split).sink("words", to="file:out")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (found,) = place.glob("*.whl")
    return found


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "procession"
    files = {
        f"procession/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.endswith("page.js") for name in files)
    with zipfile.ZipFile(wheel) as packed:
        assert files - {*packed.namelist()} == set()


def test_a_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:  # a wheel of Python alone is installed by unpacking it
        packed.extractall(tmp_path / "site")
    (tmp_path / "app.py").write_text(APP)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def output(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert str(tmp_path / "site") in output("-c", "import procession; print(procession.__file__)")
    assert "flat-map" in output("-m", "procession", "explain", "app.py")
    script = "from app import pipeline; from procession.testing import run; print(run(pipeline, {'lines': ['a b']}))"
    assert output("-c", script) == "{'words': ['a', 'b']}\n"
