"""A pipeline with replicas whose machine is lost: it continues elsewhere, and the old machine is fenced."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from procession.exit_status import Status
from procession.gateway.listen_address import addresses
from procession.sos.replicated_files import MARKER
from procession.storage.driver_claim import read_claim
from procession.testing import run as run_in_process
from procession.testing import run_upgrade
from procession.verify.sink_outputs import committed_output
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, all_pids, run, running
from tests.walk.test_host_services import app_of

pytestmark = pytest.mark.slow

APP = """
from procession import Pipeline, aggregates

def last(word):
    return word[-1]

pipeline = Pipeline("moved", parallelism=2)
words = pipeline.source("words", codec="text")
words.key_by(last).rolling(aggregates.count()).map(str).sink("output", to="file:output", codec="text")
"""
COUNTED = """
from procession import Pipeline, Upgrade

def counted(state, word):
    return {next}, f"{{word}} {value}"

pipeline = Pipeline("moved", parallelism=2)
words = pipeline.source("words", codec="text")
stage = words.map_stateful(counted, key=lambda word: word[-1], initial={initial}, name="{name}")
stage.sink("output", to="file:output")
"""
OLD = COUNTED.format(next="state + 1", value="{state}", initial=0, name="old")
NEW = COUNTED.format(next='{"n": state["n"] + 1}', value="{state['n']}", initial='{"n": 0}', name="new")
NEW += 'upgrade = Upgrade(rename={"old": "new"}, migrate={"new": lambda count: {"n": count}})\n'
WORDS = [f"{number}{'abcdefg'[number % 7]}" for number in range(6000)]


class Place:
    """Three object services, and two machines: directories in which the pipeline runs."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.cookie = root / "sos.secret"
        self.cookie.write_text("secret of the replicas")
        self.cookie.chmod(0o600)
        self._stack = stack
        self._input = root / "input.txt"  # its path names the stream, so it is the same on both machines
        self._input.write_text("".join(f"{word}\n" for word in WORDS))
        self.services = [self._service(number) for number in range(3)]
        self.each = [self._address(number) for number in range(3)]
        self.addresses = ",".join(self.each)

    def _service(self, number: int, listen: str = "127.0.0.1:0") -> Running:
        directory = self.root / f"sos-{number}"
        return self._stack.enter_context(
            running("sos", "--dir", directory, "--listen", listen, *self._secret(""), cwd=self.root)
        )

    def _address(self, number: int) -> str:
        service = self.services[number]
        wait_for(lambda: "listening on" in service.said, "an object service", lambda: service.said)
        return service.said.rpartition("listening on ")[2].split()[0]

    def kill(self, number: int) -> None:
        self.services[number].process.kill()
        self.services[number].process.wait()

    def start(self, number: int) -> None:
        self.services[number] = self._service(number, self.each[number])

    def _secret(self, prefix: str = "replica-") -> tuple[str, str]:
        return f"--{prefix}cookie-file", str(self.cookie)

    def machine(self, name: str) -> Path:
        place = self.root / name
        place.mkdir()
        (place / "app.py").write_text(APP)
        return place

    def arguments(self, *more: str) -> tuple[str, ...]:
        fixed = "run", "app.py", "--input", str(self._input), "--dir", "d", "--listen", "127.0.0.1:0", "--no-dashboard"
        return *fixed, "--epoch-records-max", "300", "--epoch-interval-s", "0.5", *self._secret(), *more

    def started(self, app: str, *more: str) -> tuple[str, ...]:
        """Return the arguments of a run that continues, without its own input."""
        fixed = "run", app, "--dir", "d", "--listen", "127.0.0.1:0", "--no-dashboard", "--epoch-records-max", "300"
        return *fixed, *self._secret(), *more

    def source(self, machine: Path, count: int, *more: str) -> tuple[str, ...]:
        """Return the arguments of a source that sends the first words."""
        self._input.write_text("".join(f"{word}\n" for word in WORDS[:count]))
        to = str(addresses(machine / "d" / "gateway")["listen"])
        return "source", "file", str(self._input), "--to", to, "--dir", "d", *more

    def replicas(self) -> tuple[str, str]:
        return "--replicas", self.addresses

    def restoring(self) -> tuple[str, str]:
        return "--restore-from", f"sos://{self.addresses}/moved"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def output(machine: Path) -> bytes:
    return b"".join(committed_output(machine / "output", None))


def until_some_is_committed(machine: Path, command: Running) -> None:
    def has_some() -> bool:
        with suppress(Exception):  # not there yet
            return bool(output(machine))
        return False

    wait_for(lambda: has_some() or command.process.poll() is not None, "the first commit", lambda: command.said)
    assert command.process.poll() is None, command.said


def end(command: Running, number: signal.Signals) -> None:
    for pid in all_pids(command.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_pipeline_whose_machine_is_lost_continues_elsewhere_with_the_output_of_a_sequential_run(place: Place) -> None:
    here, there = place.machine("here"), place.machine("there")
    expected = run_in_process(app_of(here), {"words": WORDS}).bytes["output"]
    with running(*place.arguments(*place.replicas()), cwd=here) as command:
        until_some_is_committed(here, command)
        end(command, signal.SIGKILL)
        command.wait()
    before = output(here)
    assert 0 < len(before) < len(expected)
    fence = read_claim(here / "d" / "checkpoint")
    shutil.rmtree(here)

    with running(*place.arguments(*place.restoring()), cwd=there) as command:
        assert command.wait() == Status.DONE, command.said
    assert output(there) == expected
    assert output(there).startswith(before), "what was visible stays"
    assert read_claim(there / "d" / "checkpoint") == fence + 1


def test_an_upgraded_pipeline_continues_elsewhere_with_its_migrated_states(place: Place) -> None:
    here, there = place.machine("here"), place.machine("there")
    for machine in (here, there):
        (machine / "old.py").write_text(OLD)
        (machine / "new.py").write_text(NEW)
    before, after = WORDS[:1000], WORDS[1000:2000]
    old, new = (runpy.run_path(str(here / name)) for name in ("old.py", "new.py"))
    found = run_upgrade(old["pipeline"], {"words": before}, new["pipeline"], {"words": after}, upgrade=new["upgrade"])
    expected = b"".join(result.bytes["output"] for result in found)
    with running(*place.started("old.py", *place.replicas()), cwd=here) as command:
        wait_for(lambda: "ready: connectors" in command.said, "the start", lambda: command.said)
        assert run(*place.source(here, len(before)), cwd=here).returncode == 0
        done = run("upgrade", "new.py", "--dir", "d", cwd=here)
        assert done.returncode == 0, done.stdout + done.stderr + command.said
        first = len(output(here))
        with running(*place.source(here, len(before + after), "--rate", "100"), cwd=here):
            wait_for(lambda: len(output(here)) > first, "a commit of the new program", lambda: command.said)
            end(command, signal.SIGKILL)
            command.wait()
    shutil.rmtree(here)

    with running(*place.started("new.py", *place.restoring()), cwd=there) as command:
        wait_for(lambda: "ready: connectors" in command.said, "the start", lambda: command.said)
        assert run(*place.source(there, len(before + after)), cwd=there).returncode == 0
        assert output(there) == expected
        assert run("stop", "--dir", "d", cwd=there).returncode == 0


def test_i10_a_machine_that_comes_back_after_its_pipeline_went_on_elsewhere_changes_nothing(place: Place) -> None:
    here, there = place.machine("here"), place.machine("there")
    expected = run_in_process(app_of(here), {"words": WORDS}).bytes["output"]
    with running(*place.arguments(*place.replicas()), cwd=here) as old:
        until_some_is_committed(here, old)
        end(old, signal.SIGSTOP)
        before = output(here)
        with running(*place.arguments(*place.restoring()), cwd=there) as new:
            assert new.wait() == Status.DONE, new.said
        assert output(there) == expected
        end(old, signal.SIGCONT)
        assert old.wait() != Status.DONE, old.said
    assert "replicas" in old.said, old.said
    assert expected.startswith(output(here))
    assert len(output(here)) - len(before) < len(expected) - len(before), "it did not finish the work"
    with running(*place.arguments(*place.replicas()), cwd=here) as again:
        assert again.wait() == Status.ACT, again.said
    assert "hold records of another directory" in again.said
    assert (here / "d" / MARKER).exists()
    assert output(there) == expected


def test_a_pipeline_continues_without_one_replica_and_names_those_it_waits_for_without_two(place: Place) -> None:
    here = place.machine("here")
    expected = run_in_process(app_of(here), {"words": WORDS}).bytes["output"]
    with running(*place.arguments(*place.replicas()), cwd=here) as command:
        until_some_is_committed(here, command)
        place.kill(0)
        before = len(output(here))
        wait_for(lambda: len(output(here)) > before, "an epoch with two replicas", lambda: command.said)
        place.kill(1)
        missing = place.each[:2]
        told = f"Waiting for 2 replicas; missing: {missing[0]}"
        wait_for(lambda: told in command.said, "the sentence for the operator", lambda: command.said)
        assert missing[1] in command.said.rpartition(told)[2].split("\n")[0]
        assert len(output(here)) < len(expected), "it waits for the quorum"
        assert command.process.poll() is None, command.said
        place.start(1)
        assert command.wait() == Status.DONE, command.said
    assert output(here) == expected
