"""Targets of sinks: each form is one entry of the table."""

from __future__ import annotations

import pytest

from procession.planner.sink_schemes import ADDRESS, FILE, SINK_SCHEMES, sink_scheme


@pytest.mark.parametrize(
    ("target", "scheme", "place"),
    [
        ("file:out", FILE, "out"),
        ("file:/a/b:7", FILE, "/a/b:7"),
        ("file:7100", FILE, "7100"),
        ("localhost:7200", ADDRESS, "localhost:7200"),
    ],
)
def test_a_target_has_one_scheme_and_a_place(target: str, scheme: object, place: str) -> None:
    found = sink_scheme(target)
    assert found is scheme
    assert found is not None
    assert found.place(target) == place


@pytest.mark.parametrize("target", ["", "file:", "out", "a:b", "host:", ":7100", "host:123456", "a b:7100"])
def test_anything_else_is_no_target(target: str) -> None:
    assert sink_scheme(target) is None


def test_only_a_sink_that_the_pipeline_starts_has_a_command() -> None:
    assert [scheme.is_started for scheme in SINK_SCHEMES] == [True, False]
