"""Requests at the control port: what is parsed, and how a malformed one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from procession.errors import ConfigError, RemoteProtocolError
from procession.gateway.confirmation import KnownGateway
from procession.gateway.request_parsing import (
    FORMAT,
    check_answer,
    check_format,
    clocks,
    integers,
    known_gateway,
    offset,
    place,
    positions,
    written_clocks,
)
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import LogOffset


@pytest.mark.parametrize("number", [-1, 2**64, 1.5, "1", None])
def test_a_number_is_whole_and_has_64_bits(number: Any) -> None:
    assert integers({"a": 0, "b": 2**64 - 1}, "b", "a") == [2**64 - 1, 0]
    with pytest.raises(RemoteProtocolError, match="a must be a whole number below 2\\^64"):
        integers({"a": number}, "a")


@pytest.mark.parametrize("wrong", [None, [], {"x": 1}, {"-1": 1}, {"1": -1}, {"1": None}, {"9" * 21: 1}, {"²": 1}])
def test_positions_map_stream_ids_to_message_ids(wrong: Any) -> None:
    assert positions({"positions": {"7": 70, "0": 2**64 - 1}}) == {7: 70, 0: 2**64 - 1}
    with pytest.raises(RemoteProtocolError, match="positions must"):
        positions({"positions": wrong})


@pytest.mark.parametrize("wrong", [[], 1, {"x": [1, False]}, {"1": [1]}, {"1": ["x", False]}, {"1": 5}])
def test_clocks_are_read_as_they_are_written(wrong: Any) -> None:
    found = {7: StreamClock(100, is_ended=False, seen=3), 8: StreamClock(0, is_ended=True, seen=None)}
    assert clocks({"clocks": written_clocks(found)}) == found
    assert clocks({}) == {}
    if wrong:
        with pytest.raises(RemoteProtocolError, match="clocks must map stream ids"):
            clocks({"clocks": wrong})


@pytest.mark.parametrize("wrong", [1, [], [1, 2], [1, 2, "3"], [1, 2, 3, 4], {"time": 1}])
def test_a_position_in_event_time_has_three_numbers(wrong: Any) -> None:
    assert place({"upto": [5, 7, 70]}, "upto") == Key(5, 7, 70)
    assert place({}, "upto") is None
    with pytest.raises(RemoteProtocolError, match="upto must be an order time"):
        place({"upto": wrong}, "upto")


@pytest.mark.parametrize("wrong", [-1, "5", [], [5], [5, "a"], [5, "a", 1], [-5, "a", "b"]])
def test_an_offset_names_its_log_or_is_a_sequence_alone(wrong: Any) -> None:
    assert offset({"offered": [5, "a", "b"]}, "offered") == LogOffset(5, "a", "b")
    assert offset({"offered": 5}, "offered") == LogOffset(5, "", "")
    assert offset({}, "offered") is None
    with pytest.raises(RemoteProtocolError, match="offered must be a sequence"):
        offset({"offered": wrong}, "offered")


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [],
        {"epochs": 1, "epochs_kept": 1},
        {"identity": 5, "epochs": 1, "epochs_kept": 1},
        {"identity": "a", "epochs": -1, "epochs_kept": 1},
        {"identity": "a", "epochs": 1},
        {"identity": "a", "epochs": 1, "epochs_kept": 1, "gateways": "b"},
        {"identity": "a", "epochs": 1, "epochs_kept": 1, "gateways": [5]},
    ],
)
def test_the_drivers_knowledge_of_a_gateway_is_complete_or_absent(wrong: Any) -> None:
    known = {"identity": "a", "epochs": 3, "epochs_kept": 2, "gateways": ["b"]}
    assert known_gateway({"known": known}) == KnownGateway(3, 2, "a", ("b",))
    assert known_gateway({}) == KnownGateway()
    with pytest.raises(RemoteProtocolError):
        known_gateway({"known": wrong})


@pytest.mark.parametrize("check", [check_format, check_answer])
def test_a_later_format_is_refused_with_a_next_step(check: Any) -> None:
    check({})
    check({"format": FORMAT})
    with pytest.raises(ConfigError, match=f"formats 1 to {FORMAT}") as caught:
        check({"format": FORMAT + 1})
    assert "same version" in caught.value.next_step
