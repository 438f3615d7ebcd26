"""The documentation as `make docs` builds it: without warnings, and with every public name in the API reference.

A docstring that names an argument that the function does not have is a warning; so is a broken link.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import procession
import procession.sdk
import procession.testing

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"aggregates", "tables", "windows"}
"""Public names that are modules. Each has a page with its functions."""
PATIENCE_S = 120


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_every_public_name_is_in_the_api_reference(site: Path) -> None:
    built = "".join(page.read_text() for page in (site / "reference" / "api").glob("*.html"))
    documented = {name.rpartition(".")[2] for name in re.findall(r'id="(procession\.[\w.]+)"', built)}
    assert {*procession.__all__, *procession.sdk.__all__, *procession.testing.__all__} - MODULES - documented == set()
    assert {"tumbling", "count", "of_rows", "map_stateful", "hash_join"} <= documented


def test_the_arguments_of_a_pipeline_are_in_the_api_reference_one_by_one(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "api" / "pipeline.html").read_text())
    for name in inspect.signature(procession.Pipeline).parameters:
        assert re.search(rf"^\s*{name}\s*\(", text, re.MULTILINE), name
