"""A whole pipeline whose processes use TLS with certificates on both sides."""

from __future__ import annotations

import json
from pathlib import Path

from tests.certificates import Authority
from tests.walk.commands import run

APP = """
from procession import Pipeline

pipeline = Pipeline("secret")
pipeline.source("in").sink("out", to="file:out")
"""


def test_a_pipeline_runs_with_tls_between_all_of_its_processes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue()
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "input").write_text("".join(f"{number}\n" for number in range(1000)))
    settings = {"cert": pair.cert, "key": pair.key, "ca": authority.ca, "client_ca": authority.ca}
    settings_text = "".join(f'tls_{name} = "{path}"\n' for name, path in settings.items())
    (tmp_path / "procession.toml").write_text(settings_text + "gateways = 2\n")
    done = run("run", "app.py", "--input", "input", "--listen", "127.0.0.1:0", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["committed"] == 1000
    assert run("verify", "input", "out", cwd=tmp_path).returncode == 0
