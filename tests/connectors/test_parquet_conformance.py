"""The lake sinks, run as programs, pass the conformance suite."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase, dies_at
from procession.sdk.sink_process import SinkProcess
from tests.connectors.lake_readers import PLACES, Place

QUICK = frozenset({"empty-epoch"})
"""The cases of every test run; `make test-all` has the others."""
WITHIN = ("sink:before-upload", "sink:after-upload", "sink:before-publish", "sink:after-publish")
"""Fault points of the lake sinks only: around the upload and the atomic step."""
QUICK_POINTS = ("sink:after-publish",)
OF_MANIFESTS = ("sink:manifest-written", "sink:file-visible")


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: place.name)
def conformance(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    place: Place = request.param
    directory = tmp_path_factory.mktemp(place.name)
    arguments = [word.replace("{table}", str(directory / "table")) for word in place.arguments]
    command = [sys.executable, "-m", "procession", "sink", *arguments, "--listen", "{listen}", "--format", "bytes"]
    visible = place.reader(directory / "table")
    with SinkProcess([*command, "--position-column", "position"], directory, visible) as process:
        yield Conformance(process)


@pytest.mark.parametrize(
    "case",
    [case if case.short in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
    ids=lambda case: case.short,
)
def test_a_lake_sink_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why


@pytest.mark.parametrize(
    "point",
    [
        point if point in QUICK_POINTS else pytest.param(point, marks=pytest.mark.slow)
        for point in (*WITHIN, *OF_MANIFESTS)
    ],
)
def test_a_sink_that_is_killed_around_the_upload_or_the_atomic_step_conforms(
    conformance: Conformance, point: str, request: pytest.FixtureRequest
) -> None:
    finding = asyncio.run(conformance.run(dies_at(point, True)))
    is_reached = point in WITHIN or "parquet" in request.node.callspec.id
    assert finding.outcome is (CaseOutcome.PASSED if is_reached else CaseOutcome.NOT_REACHED), finding.why
