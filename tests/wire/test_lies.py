"""Frames with false values: if any byte, length or count of a golden frame is changed, in both versions, the result is
another frame or the peer's error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from procession.errors import RemoteProtocolError
from procession.wire import draft, frame_codec, two_phase_commit, v3
from procession.wire.connection import Connection, Violation
from procession.wire.draft_messages import Extension
from procession.wire.lifecycle import ConnectionState, Role
from procession.wire.messages import Message
from tests.wire.test_connection import Pair as V3Pair
from tests.wire.test_draft import VECTORS as DRAFT
from tests.wire.test_draft_connection import Pair as DraftPair
from tests.wire.test_v3 import VECTORS as V3

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
CODECS: dict[str, Codec] = {"v3": (v3.decode, v3.encode), "draft": (draft.decode, draft.encode)}
GOLDEN = [("v3", name, data) for name, data in V3.items()] + [("draft", name, data) for name, data in DRAFT.items()]
every_frame = pytest.mark.parametrize(("version", "name", "data"), GOLDEN, ids=[f"{v}: {n}" for v, n, _ in GOLDEN])


def lies(body: bytes) -> Iterator[bytes]:
    """Yield the body with a number of each width at each position replaced by false values."""
    for width in (1, 2, 4, 8):
        for start in range(len(body) - width + 1):
            length, top = int.from_bytes(body[start : start + width]), 256**width - 1
            for lie in {0, 1, length - 1, length + 1, len(body), top // 2, top // 2 + 1, top - 1, top}:
                if 0 <= lie <= top and lie != length:
                    yield body[:start] + lie.to_bytes(width) + body[start + width :]


@every_frame
def test_a_frame_with_a_lie_in_it_is_another_frame_or_the_peers_error(version: str, name: str, data: bytes) -> None:
    decode, encode = CODECS[version]
    refused = 0
    for body in lies(data[4:]):
        try:
            frame = decode(body)
        except RemoteProtocolError:
            refused += 1
            continue
        assert encode(frame)[4:] == body
    assert refused


@pytest.mark.parametrize("name", [name for name in V3 if name.startswith("2PC")])
def test_a_two_phase_commit_message_with_a_lie_in_it_is_another_one_or_the_peers_error(name: str) -> None:
    frame = v3.decode(V3[name][4:])
    assert isinstance(frame, Message)
    refused = 0
    for payload in lies(frame.payload):
        try:
            message = two_phase_commit.decode(payload)
        except RemoteProtocolError:
            refused += 1
            continue
        assert two_phase_commit.encode(message) == payload
    assert refused


def streaming(version: str) -> list[Connection]:
    """Yield every kind of end of a connection, with stream 7 open."""
    if version == "draft":
        drafts = DraftPair(frozenset(Extension)).to(ConnectionState.STREAMING).open(7)
        return [drafts.initiator, drafts.acceptor]
    pairs = [V3Pair(role).to(ConnectionState.STREAMING).open(7) for role in Role]
    return [end for pair in pairs for end in (pair.initiator, pair.acceptor)]


@every_frame
def test_a_frame_with_a_lie_about_its_own_length_is_an_event_and_costs_no_memory(
    version: str, name: str, data: bytes
) -> None:
    true_length, frame_bytes_max = len(data) - 4, 200
    for length in {*range(true_length + 20), frame_bytes_max, frame_bytes_max + 1, 2**31, 2**32 - 1} - {true_length}:
        for end in streaming(version):
            end._framer.frame_bytes_max = frame_bytes_max
            events = end.receive(frame_codec.u32(length) + data[4:] + data)
            # It is refused, or taken for other frames, or waits for the rest that it was promised.
            assert not [event for event in events[:-1] if isinstance(event, Violation)]
            assert end.is_over == (bool(events) and end.state is not ConnectionState.STREAMING)
            if not 0 < length <= frame_bytes_max:
                assert isinstance(events[-1], Violation)
            assert len(end._framer._held) <= 4 + frame_bytes_max


@every_frame
def test_a_frame_that_comes_in_two_pieces_is_the_frame_that_came_in_one(version: str, name: str, data: bytes) -> None:
    whole = [end.receive(data) for end in streaming(version)]
    for cut in range(1, len(data)):
        for end, expected in zip(streaming(version), whole, strict=True):
            assert end.receive(data[:cut]) == [], "an incomplete frame is not returned"
            assert end.receive(data[cut:]) == expected
