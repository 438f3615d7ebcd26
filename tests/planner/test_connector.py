"""A connector: its defaults without any option, and how it reads a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.errors import PlanError
from procession.planner.connector import Connector, EpochLimits, SinkTraits, SourceTraits

PLAIN = Connector(name="tape", form="tape:DRIVE", sink=SinkTraits(help="w"), source=SourceTraits(help="r"))


def test_a_program_gets_its_url_and_a_directory_unless_its_connector_says_otherwise() -> None:
    url = PLAIN.url("tape:left?speed=2")
    assert PLAIN.sink is not None
    assert PLAIN.source is not None
    assert PLAIN.sink.arguments(url, Path("/state")) == ["tape:left?speed=2", "/state"]
    assert PLAIN.source.arguments(url, Path("/state")) == ["tape:left?speed=2", "/state"]
    assert PLAIN.source.declared_arguments(url, Path("/state")) == []


def test_a_plain_sink_bounds_no_epoch_needs_no_module_and_keeps_the_order() -> None:
    url = PLAIN.url("tape:left")
    assert PLAIN.sink is not None
    assert PLAIN.sink.limits(url) == EpochLimits(None, None)
    assert PLAIN.sink.order_note(url, "total") == ""
    assert list(PLAIN.modules_for(url)) == []
    PLAIN.sink.check(url)


def test_a_plain_source_never_ends_and_does_not_know_its_streams() -> None:
    assert PLAIN.source is not None
    assert not PLAIN.source.ends(PLAIN.url("tape:left"))
    assert PLAIN.source.declared is None


def test_a_question_mark_belongs_to_the_place_of_an_opaque_url_only() -> None:
    opaque = Connector(name="tape", form="tape:DRIVE", is_opaque=True)
    assert opaque.url("tape:what?.log").place == "what?.log"
    assert PLAIN.url("tape:what?speed=2").place == "what"


def test_a_password_in_a_url_is_refused_with_the_place_where_it_belongs() -> None:
    safe = Connector(name="tape", form="tape://HOST", password_hint="the environment variable TAPEPASSWORD")
    with pytest.raises(PlanError) as caught:
        safe.url("tape://user:secret@host/left")
    assert "TAPEPASSWORD" in caught.value.next_step
    assert "secret" not in str(caught.value)
