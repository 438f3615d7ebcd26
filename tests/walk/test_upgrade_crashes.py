"""Upgrades under kills: a program changes again and again while its processes are killed. It writes what a sequential
program writes that changes at the same records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procession.gateway.listen_address import addresses
from procession.supervisor.upgrade_switch import STATUS
from procession.verify.sink_outputs import committed_output
from tests.slow_cases import slow
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, pids, run, running

DIRECTORY = Path(".procession") / "years"
RATE = 40

APP = """
from procession import Pipeline, Upgrade

def step(state, line):
    count, migrations = {read}
    count += 1
    return {write}, f"{{line}} {{count}} {{migrations}} {version}"

pipeline = Pipeline("years", parallelism=2)
lines = pipeline.source("lines", codec="text")
stage = lines.map_stateful(
    step, key=lambda line: line[-1], initial={initial}, name="stage-{version}", parallelism={parallelism}
)
stage.sink("out", to="file:out")
{sinks}
{upgrade}
"""


def program(version: int) -> str:
    """Each version has another name of the stage, another form of the state, another parallelism, and other sinks."""
    is_dict = version % 2 == 1
    migrate = '{"n": old[0], "m": old[1] + 1}' if is_dict else '[old["n"], old["m"] + 1]'
    names = f'rename={{"stage-{version - 1}": "stage-{version}"}}, migrate={{"stage-{version}": lambda old: {migrate}}}'
    sink = f'stage.sink("extra-{version // 2}", to="file:extra-{version // 2}")' if version % 4 else ""
    return APP.format(
        read='(state["n"], state["m"])' if is_dict else "state",
        write='{"n": count, "m": migrations}' if is_dict else "[count, migrations]",
        initial='{"n": 0, "m": 0}' if is_dict else "[0, 0]",
        version=version,
        parallelism=1 + version % 4,
        sinks=sink,
        upgrade=f"upgrade = Upgrade({names})" if version else "",
    )


def reference(outputs: list[str]) -> list[str]:
    """What a sequential program writes that changes its version at the same records."""
    states: dict[str, list[int]] = {}
    found, version = [], 0
    for line, *_, text in (output.rsplit(" ", 3) for output in outputs):
        assert int(text) >= version, "an old program wrote after a new one"
        for _ in range(int(text) - version):
            states = {key: [count, migrations + 1] for key, (count, migrations) in states.items()}
        version = int(text)
        state = states.setdefault(line[-1], [0, 0])
        state[0] += 1
        found.append(f"{line} {state[0]} {state[1]} {version}")
    return found


@contextmanager
def killed(place: Path, pipeline: Running, part: str, phase: int) -> Iterator[None]:
    """Kill a process of this part, once, when the upgrade inside has come to this phase: 1 while the new driver starts,
    2 when the old one is stopped, 3 when the new one begins."""
    is_over, path = threading.Event(), place / DIRECTORY / STATUS
    before = path.read_text() if path.exists() else ""

    def kill() -> None:
        while not is_over.wait(0.01):
            if not path.exists() or (text := path.read_text()) == before:
                continue
            if len(json.loads(text)["told"]) >= phase and (found := pids(pipeline.mark, part)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found[0], signal.SIGKILL)
                    return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("upgrades", [1, slow(10)])
def test_a_pipeline_that_is_upgraded_under_kills_writes_what_a_sequential_one_does(
    tmp_path: Path, upgrades: int
) -> None:
    for version in range(upgrades + 1):
        (tmp_path / f"v{version}.py").write_text(program(version))
    records = [f"record {number}" for number in range(RATE * 20 * upgrades)]
    (tmp_path / "input.txt").write_text("".join(f"{record}\n" for record in records))

    def output() -> list[str]:
        return b"".join(committed_output(tmp_path / "out", "years-out-0")).decode().splitlines()

    arguments = ("run", "v0.py", "--listen", "127.0.0.1:0", "--epoch-records-max", "50")
    with running(*arguments, cwd=tmp_path) as pipeline:
        wait_for(lambda: "ready: connectors" in pipeline.said, "the start", lambda: pipeline.said)
        to = str(addresses(tmp_path / DIRECTORY / "gateway")["listen"])
        source = ("source", "file", "input.txt", "--to", to, "--dir", DIRECTORY, "--rate", str(RATE))
        with running(*source, cwd=tmp_path) as sent:
            wait_for(lambda: bool(output()), "the first output", lambda: pipeline.said + sent.said)
            for version in range(1, upgrades + 1):
                phase = 3 - version % 3
                with killed(tmp_path, pipeline, ("driver", "gateway", "driver", "sink")[version % 4], phase):
                    done = run("upgrade", f"v{version}.py", "--json", cwd=tmp_path)
                if done.returncode:  # the kill has thwarted it, and the old program goes on
                    assert done.stdout, f"{done.stderr}\n{pipeline.said}"
                    assert json.loads(done.stdout)["state"] in ("failed", "went back")
                    done = run("upgrade", f"v{version}.py", "--json", cwd=tmp_path)
                assert done.returncode == 0, f"{done.stdout}\n{pipeline.said}"
            wait_for(lambda: len(output()) == len(records), "the whole output", lambda: pipeline.said + sent.said)
        assert "was ended by signal 9" in pipeline.said
        found = output()
        assert [line.rsplit(" ", 3)[0] for line in found] == records
        assert found == reference(found)
        assert run("stop", cwd=tmp_path).returncode == 0
