"""A program against its checkpoint: which sources, sinks and codecs are others, by name, and how to continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.commit.declared_endpoints import check_codecs, other_endpoints
from procession.errors import PlanError
from procession.planner.graph import SinkCodec

ROOT = Path("checkpoint")
KNOWN = {"source orders": "source", "sink alerts": "sink"}
ONLY_SINKS = "change the sinks with `procession upgrade`"


@pytest.mark.parametrize("is_inherited", [False, True])
@pytest.mark.parametrize(
    ("before", "now", "is_alike"),
    [
        ("json", "json", True),
        ("json", "bytes", False),
        ("bytes", "text", True),
        ("text", "bytes", True),
        (None, "bytes", True),
        (None, "text", True),
        (None, "json", False),
    ],
)
def test_only_a_codec_that_the_program_does_not_name_must_be_the_one_before(
    before: str | None, now: str, is_alike: bool, is_inherited: bool
) -> None:
    known = {} if before is None else {"alerts": before}
    codecs = {"alerts": SinkCodec(now, is_inherited)}
    if is_alike or not is_inherited:
        check_codecs(ROOT, known, codecs)
        return
    with pytest.raises(PlanError) as caught:
        check_codecs(ROOT, known, codecs)
    assert "'alerts'" in caught.value.sentence
    assert f'codec="{before or "bytes"}"' in caught.value.next_step
    assert f'codec="{now}"' in caught.value.next_step
    assert caught.value.stage == "alerts"


@pytest.mark.parametrize(
    ("given", "what", "step", "is_upgrade"),
    [
        ({"source orders": "source"}, "sink 'alerts' is gone", "put it back", True),
        ({"sink alerts": "sink"}, "source 'orders' is gone", "put it back", False),
        ({**KNOWN, "sink more": "sink"}, "sink 'more' is new", "remove it", True),
        ({**KNOWN, "source more": "source"}, "source 'more' is new", "remove it", False),
        (
            {"source orders": "source", "sink letters": "sink"},
            "sink 'alerts' is gone, and sink 'letters' is new",
            "name it 'alerts'",
            True,
        ),
        (
            {"source bills": "source", "sink alerts": "sink"},
            "source 'orders' is gone, and source 'bills' is new",
            "name it 'orders'",
            False,
        ),
        (
            {"source orders": "source", "sink alerts": "idempotent sink"},
            "'alerts' is a idempotent sink, and was a sink",
            "make it a sink again",
            False,
        ),
        (KNOWN, "guarantee", "declare it as before", False),
    ],
)
def test_the_difference_is_named_and_how_to_continue(
    given: dict[str, str], what: str, step: str, is_upgrade: bool
) -> None:
    error = other_endpoints(ROOT, "p", KNOWN, given)
    assert what in error.sentence
    assert step in error.next_step
    assert (ONLY_SINKS in error.next_step) is is_upgrade
    assert "another --dir" in error.next_step


def test_the_earlier_program_is_started_before_a_sink_is_removed() -> None:
    without = other_endpoints(ROOT, "p", KNOWN, {"source orders": "source"})
    assert "start the earlier program" in without.next_step
    more = other_endpoints(ROOT, "p", KNOWN, {**KNOWN, "sink more": "sink"})
    assert "start the earlier program" not in more.next_step


def test_the_stage_of_the_error_is_the_source_or_sink() -> None:
    assert other_endpoints(ROOT, "p", KNOWN, {"source orders": "source"}).stage == "alerts"
    assert other_endpoints(ROOT, "p", KNOWN, {**KNOWN, "sink more": "sink"}).stage == "more"
