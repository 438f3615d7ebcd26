"""`procession explain` plans an app as it would run, with and without inputs, and names the stage that limits its
tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from procession.cli.main import app
from procession.errors import ConfigError, PlanError

SORTED = """
from procession import Pipeline
pipeline = Pipeline("sorted", parallelism=4)
numbers = pipeline.source("numbers", codec="text").map(int, name="slow", parallelism=2).map(str, name="fast")
numbers.sort(int, name="by-size").sink("out", to="file:out")
"""


def test_explain_plans_an_app_with_its_input_files(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SORTED)
    (tmp_path / "numbers").write_text("1\n")
    without = CliRunner().invoke(app, ["explain", str(tmp_path / "app.py")])
    assert isinstance(without.exception, PlanError)
    output = CliRunner().invoke(app, ["explain", str(tmp_path / "app.py"), "--input", str(tmp_path / "numbers")])
    assert output.exit_code == 0
    assert "by-size: numbers" in output.output
    missing = CliRunner().invoke(app, ["explain", str(tmp_path / "app.py"), "--input", str(tmp_path / "none")])
    assert isinstance(missing.exception, ConfigError)


@pytest.mark.parametrize("line", ["0   2 tasks: numbers, slow, fast (capped by slow)", "(capped by by-size)"])
def test_explain_names_the_stage_that_limits_the_parallelism_of_a_chain(tmp_path: Path, line: str) -> None:
    (tmp_path / "app.py").write_text(SORTED)
    (tmp_path / "numbers").write_text("1\n")
    output = CliRunner().invoke(app, ["explain", str(tmp_path / "app.py"), "--input", str(tmp_path / "numbers")])
    assert line in output.output


def test_explain_names_the_limiting_stage_in_json_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SORTED)
    (tmp_path / "numbers").write_text("1\n")
    arguments = ["explain", str(tmp_path / "app.py"), "--input", str(tmp_path / "numbers"), "--json"]
    document = json.loads(CliRunner().invoke(app, arguments).output)
    assert [chain["capped_by"] for chain in document["chains"]] == ["slow", "by-size"]
