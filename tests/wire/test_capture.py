"""Captures: frames are converted to JSON and back, in both directions of a connection, and errors name the byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.wire import draft, v3
from procession.wire.capture import Capture, Captured, HexReader, encoded, is_hex
from procession.wire.draft_messages import DraftFrame
from procession.wire.messages import Eos, Error, Frame, Hello, Ok, Restart
from tests.wire.test_draft import VECTORS as DRAFT_VECTORS
from tests.wire.test_draft import frames as draft_frames
from tests.wire.test_v3 import VECTORS, frames

EVERYTHING = b"".join(VECTORS.values())
DRAFT = b"".join(DRAFT_VECTORS.values())


def decoded(data: bytes, capture: Capture | None = None) -> list[Captured]:
    capture = capture or Capture()
    found = list(capture.feed(data))
    capture.finish()
    return found


def there_and_back(data: bytes) -> bytes:
    documents = [json.dumps(captured.as_document()) for captured in decoded(data)]
    return b"".join(encoded(json.loads(document))[1] for document in documents)


def test_every_golden_frame_goes_through_json_and_comes_back_as_the_same_bytes() -> None:
    assert there_and_back(EVERYTHING) == EVERYTHING
    assert there_and_back(DRAFT) == DRAFT


@given(st.lists(frames, max_size=4))
def test_any_frames_go_through_json_and_come_back_as_the_same_bytes(sent: list[Frame]) -> None:
    data = b"".join(map(v3.encode, sent))
    assert there_and_back(data) == data


def test_a_capture_may_hold_both_versions_and_each_tag_tells_its_own() -> None:
    found = decoded(EVERYTHING + DRAFT)
    assert [frame.version for frame in found] == ["v3"] * len(VECTORS) + ["draft"] * len(DRAFT_VECTORS)
    assert there_and_back(EVERYTHING + DRAFT) == EVERYTHING + DRAFT
    with pytest.raises(RemoteProtocolError, match=r"^at byte 0: unknown frame tag 72"):
        decoded(DRAFT, Capture("v3"))


@given(st.lists(draft_frames, max_size=4))
def test_any_frames_of_the_draft_go_through_json_and_come_back_as_the_same_bytes(sent: list[DraftFrame]) -> None:
    data = b"".join(map(draft.encode, sent))
    assert there_and_back(data) == data


def test_a_frame_with_two_encodings_keeps_the_peers_encoding_until_a_field_changes() -> None:
    (captured,) = decoded(b"\x00\x00\x00\x01\x07")
    document = captured.as_document()
    assert encoded(document) == ("", b"\x00\x00\x00\x01\x07")
    assert encoded({**document, "address": "h:1"}) == ("", v3.encode(Restart("h:1")))


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_positions_are_those_of_the_first_bytes_however_the_capture_comes(piece: int) -> None:
    capture = Capture()
    found = [
        captured
        for start in range(0, len(EVERYTHING), piece)
        for captured in capture.feed(EVERYTHING[start : start + piece])
    ]
    capture.finish()
    assert [EVERYTHING[result.position :].startswith(result.data) for result in found] == [True] * len(VECTORS)
    assert [frame.position for frame in found] == sorted({result.position for result in found})


def test_every_cut_of_a_capture_gives_the_frames_before_it_and_names_the_byte() -> None:
    starts = [captured.position for captured in decoded(EVERYTHING)]
    for end in range(len(EVERYTHING)):
        capture = Capture()
        found = list(capture.feed(EVERYTHING[:end]))
        assert [captured.data for captured in found] == list(VECTORS.values())[: len(found)]
        if end in starts:
            capture.finish()
        else:
            with pytest.raises(
                RemoteProtocolError, match=f"ends at byte {end}, inside .* at byte {starts[len(found)]}$"
            ):
                capture.finish()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00\x00\x01\x09", "unknown frame tag 9"),
        (b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
        (bytes(8), "empty frame"),
        (b"\x00\x00\x00\x02\x01\x00", "truncated frame"),
    ],
)
def test_a_wrong_capture_gives_the_frames_before_and_names_the_byte(data: bytes, reason: str) -> None:
    before = v3.encode(Ok(1)) + v3.encode(Eos(7))
    captured = Capture().feed(before + data)
    assert [next(captured).frame, next(captured).frame] == [Ok(1), Eos(7)]
    with pytest.raises(RemoteProtocolError, match=f"^at byte {len(before)}: {reason}"):
        next(captured)


def test_each_direction_is_a_stream_of_its_own() -> None:
    hello, ok = v3.encode(Hello("0.0.1", b"", "p", "i")), v3.encode(Ok(9))
    text = f"> {hello[:7].hex()}\n< {ok.hex()}\n> {hello[7:].hex()}\n{v3.encode(Eos(1)).hex()}"
    capture, reader = Capture(), HexReader()
    found = [captured for direction, data in reader.feed(text) for captured in capture.feed(data, direction)]
    assert [(result.direction, result.position, type(result.frame)) for result in found] == [
        ("<", 0, Ok),
        (">", 0, Hello),
        (">", len(hello), Eos),
    ]
    assert [encoded(frame.as_document()) for frame in found] == [(result.direction, result.data) for result in found]


@given(st.binary(max_size=30), st.lists(st.integers(1, 9), min_size=1))
def test_hex_may_come_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    text, reader, found = data.hex(" ", 3), HexReader(), b""
    for turn in range(len(text) + 1):
        size = cuts[turn % len(cuts)]
        found += b"".join(piece for _, piece in reader.feed(text[:size]))
        text = text[size:]
    reader.finish()
    assert found == data


@pytest.mark.parametrize(
    ("text", "reason"), [("00 0g", "'g', character 4"), ("00 0", "half a byte"), ("0 > 0", "half")]
)
def test_text_that_is_not_hex_is_reported_with_its_position(text: str, reason: str) -> None:
    reader = HexReader()
    with pytest.raises(RemoteProtocolError, match=reason):
        _ = [*reader.feed(text), reader.finish()]


def test_bytes_and_hex_are_distinguished() -> None:
    assert is_hex(b"> 00 aF\r\n")
    assert not is_hex(v3.encode(Error("abc")))
