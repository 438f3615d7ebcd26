"""Sinks with replicas pass the conformance suite: each run of the program is on a new machine, without the disk of the
one before."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.sink_process import SinkProcess, Visible
from procession.sos.directory_restore import restore_directory
from tests.connectors.test_conformance import of_epochs, of_files
from tests.sos.test_replicated_files import ServiceThread
from tests.sos.test_replicated_volume import SECRET

SHORT = ("after-vote-before-reply-commit", "after-output-commit-commit")
"""The cases of every test run. The others are slow: each needs several starts of the program."""


class LostSinkProcess(SinkProcess):
    """A sink program each of whose starts is on a new machine."""

    def __init__(self, work: Path, kind: str, visible: Visible, replicas: ServiceThread) -> None:
        secret = work / "secret"
        secret.write_bytes(SECRET)
        addresses = ",".join(map(str, replicas.services.addresses))
        command = [sys.executable, "-m", "procession", "sink", kind, "{dir}", "--listen", "{listen}"]
        command += ["--replicas", addresses, "--replica-volume", "v", "--replica-cookie-file", str(secret)]
        super().__init__(command, work, visible)
        self._replicas = replicas

    def _start(self) -> None:
        if self.lives:
            shutil.rmtree(self.directory)
            self._replicas.run(restore_directory("v", self._replicas.options(), self.directory))
        super()._start()


@pytest.fixture(scope="module", params=["file", "epochs"])
def conformance(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    work = tmp_path_factory.mktemp(request.param)
    replicas = ServiceThread(work / "replicas")
    with LostSinkProcess(
        work, request.param, {"file": of_files, "epochs": of_epochs}[request.param], replicas
    ) as trial:
        yield Conformance(trial)
    replicas.close()


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case.short in SHORT else [pytest.mark.slow]) for case in CASES]
)
def test_a_sink_whose_machine_is_lost_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why
