"""The messages between a driver and an emitter process: encoded and decoded, cut anywhere; invalid ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.commit.emitter import ConnectionRuns
from procession.commit.emitter_frames import (
    FRAME_BYTES_MAX,
    Answer,
    FrameReader,
    GatewaysLeft,
    LinkFailed,
    Notice,
    OpenAgain,
    OpenConnections,
    Request,
    RunPlace,
    SendDecision,
    SendRuns,
    read_answer,
    read_request,
    written_answer,
    written_request,
)
from procession.commit.round_events import EmitEpoch, Phase2Confirmed, SinkConnected, SinkLost, VoteReceived
from procession.commit.sink_link import SinkOptions
from procession.errors import RemoteProtocolError, StorageError
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import Run
from procession.tls import ClientTls
from procession.wire.lane_blocks import LaneIdentity

LANE = LaneIdentity("g", "p", "out", (1, 2), 3, "total", paths=4)
OPTIONS = (
    SinkOptions("a.0", "127.0.0.1", 1, "p", "p-a-0", cookie=b"\x00secret\xff", sink="a", bucket=0),
    SinkOptions("a.1", "h", 2, "p", "p-a-1", tls=ClientTls(Path("ca"), Path("c"), Path("k"), "n"), bucket=1, lane=LANE),
    SinkOptions("a.2", "h", 2, "p", "p-a-2", tls=ClientTls(Path("ca")), bucket=2, is_in_blocks=True, pack_bytes_max=9),
)
REQUESTS: tuple[Request, ...] = (
    OpenConnections(RunPlace("runs/1", "identity"), OPTIONS),
    OpenConnections(RunPlace("runs/1", hosts=HostRuns("id", 3, FlightAccess(b"hidden", ClientTls(Path("ca"))))), ()),
    SendRuns(
        EmitEpoch("a.0", "txn", 3, 10, None), ConnectionRuns([Run("a", 0, "file", 2, 30, 1), Run("a", 0, "f", 1, 1)], 7)
    ),
    SendRuns(EmitEpoch("a.0", "txn", 3, 10, 40), ConnectionRuns([], 0)),
    SendDecision("a.0", "txn", True),
    OpenAgain("a.0", 0.5),
    GatewaysLeft("a.0", ("gateway-1", "gateway-2")),
)
ANSWERS: tuple[Answer, ...] = (
    SinkConnected("a.0", ("txn 1", "txn 2"), 17),
    SinkConnected("a.0", (), None),
    SinkLost("a.0", True),
    VoteReceived("a.0", "txn", False, None),
    VoteReceived("a.0", "txn", True, 12),
    Phase2Confirmed("a.0", "txn"),
    Notice("sink 'a' cannot be reached; waiting for it"),
)


def read_in_pieces(data: bytes, size: int) -> list[Any]:
    reader = FrameReader()
    return [document for at in range(0, len(data), size) for document in reader.take(data[at : at + size])]


@given(st.integers(1, 500))
def test_all_messages_are_decoded_however_their_bytes_are_divided(size: int) -> None:
    requests = b"".join(map(written_request, REQUESTS))
    assert tuple(map(read_request, read_in_pieces(requests, size))) == REQUESTS
    answers = b"".join(map(written_answer, ANSWERS))
    assert tuple(map(read_answer, read_in_pieces(answers, size))) == ANSWERS


def test_an_error_keeps_its_kind_its_sentence_and_its_next_step() -> None:
    error = StorageError("The run is missing.", next_step="Wait.", path="x")
    (document,) = read_in_pieces(written_answer(LinkFailed("a.0", error, True)), 1000)
    found = read_answer(document)
    assert isinstance(found, LinkFailed)
    assert (found.sink, found.is_unsendable, found.error.as_dict()) == ("a.0", True, error.as_dict())
    assert isinstance(found.error, StorageError)


@pytest.mark.parametrize("read", [read_request, read_answer])
@pytest.mark.parametrize(
    "document",
    [{}, {"emit": {}, "runs": [], "total": 0}, {"open": [{}], "runs": "x"}, {"event": "SinkLost"}, {"event": "Evil"}],
    ids=str,
)
def test_nonsense_is_refused(read: Callable[[Any], Any], document: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="emitter"):
        read(document)


@pytest.mark.parametrize(
    "data", [(FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"\0\0\0\1x", b"\0\0\0\2[]"], ids=["length", "json", "object"]
)
def test_bytes_that_are_not_a_frame_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="frame"):
        list(FrameReader().take(data))


def test_a_secret_is_in_no_printed_text() -> None:
    assert "secret" not in repr(OPTIONS[0])
    assert json.loads(written_request(REQUESTS[0])[4:])["open"][0]["cookie"] == b"\x00secret\xff".hex()
