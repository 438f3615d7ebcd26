"""A pipeline that a program defines is passed to another process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from procession import Pipeline, PlanError
from procession.driver.app_file import load_app
from procession.driver.defined_pipeline import PICKLE, read_pipeline, write_app
from procession.errors import ConfigError, UsageError
from procession.testing import run

SCRIPT = """
import sys
from pathlib import Path
from procession import Pipeline
from procession.driver.defined_pipeline import write_app
sys.path.append({beside!r})
import beside

factor = 3
pipeline = Pipeline("defined")
pipeline.source("numbers", codec="json").map(lambda n: factor * beside.plus_one(n)).sink("out", to="file:output")
write_app(pipeline, Path({program!r}))
"""


def doubled() -> Pipeline:
    pipeline = Pipeline("doubled")
    pipeline.source("numbers", codec="json").map(lambda number: 2 * number).sink("out", to="file:output")
    return pipeline


def test_a_pipeline_of_a_script_runs_in_another_process_with_its_globals_and_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "beside.py").write_text("def plus_one(n):\n    return n + 1\n")
    script = SCRIPT.format(beside=str(tmp_path / "modules"), program=str(tmp_path / "program"))
    subprocess.run([sys.executable, "-c", script], check=True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "before")
    assert load_app(tmp_path / "program" / "app.py").graph.name == "defined"
    assert run(read_pipeline(tmp_path / "program" / PICKLE), {"numbers": [1, 2]}) == {"out": [6, 9]}
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == "before"
    assert str(tmp_path / "modules") in os.environ["PYTHONPATH"].split(os.pathsep), "Spark's workers look there"


def test_only_the_owner_can_read_the_file_and_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_app(doubled(), tmp_path / "program")
    path = tmp_path / "program" / PICKLE
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="could be read or written by others"):
        read_pipeline(path)
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pipeline(path)


def test_another_version_of_python_refuses_the_file(tmp_path: Path) -> None:
    write_app(doubled(), tmp_path)
    path = tmp_path / PICKLE
    _, places, data = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps((("3", "1"), places, data)))
    with pytest.raises(ConfigError, match=r"was written by Python 3\.1,"):
        read_pipeline(path)


def test_a_function_that_uses_a_lock_of_this_process_is_refused(tmp_path: Path) -> None:
    lock = threading.Lock()
    pipeline = Pipeline("locked")
    pipeline.source("numbers").filter(lambda _: not lock.locked()).sink("out", to="file:output")
    with pytest.raises(PlanError, match="cannot be passed to the driver's process: TypeError"):
        write_app(pipeline, tmp_path)


def test_an_app_that_runs_itself_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "from procession import Pipeline\npipeline = Pipeline('p')\n"
        "pipeline.source('s').sink('out', to='file:output')\npipeline.run({'s': []})\n"
    )
    with pytest.raises(UsageError, match="while it is loaded as an app"):
        load_app(app)
