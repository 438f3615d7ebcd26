"""The draft, byte for byte: golden frames, every truncation of every frame, and any frame encoded and decoded."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import draft, frame_codec, v3
from procession.wire.draft_messages import (
    DEBUG_COUNT_MAX,
    AckCounts,
    Debug,
    DebugFault,
    DraftFrame,
    DraftMessage,
    DraftOk,
    Extension,
    Flag,
)
from procession.wire.messages import Ack, Error, Hello, Notify, Restart

LINES = (Path(__file__).parent / "vectors" / "connector-draft-frames.txt").read_text().splitlines()
VECTORS = {line.rsplit(maxsplit=1)[0].strip(): bytes.fromhex(line.rsplit(maxsplit=1)[1]) for line in LINES if line}

TACOS = b"Dragons-Love-Tacos"
MEANT: dict[str, DraftFrame] = {
    "HELLO": Hello("draft", TACOS, "celsius", "instance"),
    "HELLO no cookie, counts and debug": Hello("draft+counts+debug", b"", "p", "i"),
    "OK 500 no streams": DraftOk(500),
    'OK 500 [(7,"s",49),(8,"",0)]': DraftOk(500, ((7, "s", 49), (8, "", 0))),
    'ERROR "Bad cookie"': Error("Bad cookie"),
    'NOTIFY 7 "s" por 0': Notify(7, "s", 0),
    'NOTIFY 7 "s" por 49': Notify(7, "s", 49),
    'MESSAGE 7 id 49 "hi\\n"': DraftMessage(7, 49, b"hi\n"),
    "MESSAGE 7 id 49 empty": DraftMessage(7, 49, b""),
    'MESSAGE 7 id 49 et 12 key "k" "hi\\n"': DraftMessage(7, 49, b"hi\n", event_time=12, key=b"k"),
    'MESSAGE 7 id 49 et 2^64-1 "x"': DraftMessage(7, 49, b"x", event_time=2**64 - 1),
    'MESSAGE 7 id 49 key "" "x"': DraftMessage(7, 49, b"x", key=b""),
    'MESSAGE 7 id 50 unstable "x"': DraftMessage(7, 50, b"x", is_unstable=True),
    'MESSAGE 7 id 51 eos "x"': DraftMessage(7, 51, b"x", is_last=True),
    'MESSAGE 9 ephemeral "x"': DraftMessage(9, None, b"x"),
    'MESSAGE 9 ephemeral et 12 key "k" "x"': DraftMessage(9, None, b"x", event_time=12, key=b"k"),
    'MESSAGE 9 ephemeral eos "x"': DraftMessage(9, None, b"x", is_last=True),
    "MESSAGE 9 ephemeral boundary eos": DraftMessage(9, None, None, is_last=True),
    "MESSAGE 7 id 60 boundary": DraftMessage(7, 60, None),
    "MESSAGE 7 id 61 boundary unstable": DraftMessage(7, 61, None, is_unstable=True),
    "MESSAGE 7 id 62 boundary eos": DraftMessage(7, 62, None, is_last=True),
    "MESSAGE 7 id 63 all that goes together": DraftMessage(7, 63, None, 12, b"k", is_last=True, is_unstable=True),
    "ACK credits 450 [(7,49),(8,0)]": Ack(450, ((7, 49), (8, 0))),
    "ACK credits 10 []": Ack(10),
    "RESTART": Restart(),
    "ACK_COUNTS credits 450 [(7,49,3),(8,0,1)]": AckCounts(450, ((7, 49, 3), (8, 0, 1))),
    "ACK_COUNTS credits 10 []": AckCounts(10),
    "DEBUG stutter 3": Debug(DebugFault.STUTTER, 3),
    "DEBUG tick 1000": Debug(DebugFault.TICK, 1000),
    "DEBUG restart": Debug(DebugFault.RESTART),
    "DEBUG close": Debug(DebugFault.CLOSE),
    "DEBUG error": Debug(DebugFault.ERROR),
}

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
short = st.text(max_size=20)
keys = st.binary(max_size=20)
payloads = st.binary(max_size=50)
messages = st.builds(
    DraftMessage, u64, st.none() | u64, st.none() | payloads, st.none() | u64, st.none() | keys, st.booleans()
).filter(lambda message: message.message_id is not None or message.payload is not None or message.is_last)
frames = st.one_of(
    st.builds(Hello, short, keys, short, short),
    st.builds(DraftOk, u32, st.lists(st.tuples(u64, short, u64), max_size=4).map(tuple)),
    st.builds(Error, short),
    st.builds(Notify, u64, short, u64),
    messages,
    st.builds(Ack, u32, st.lists(st.tuples(u64, u64), max_size=4).map(tuple)),
    st.builds(AckCounts, u32, st.lists(st.tuples(u64, u64, u64), max_size=4).map(tuple)),
    st.just(Restart()),
    st.builds(Debug, st.sampled_from(DebugFault), st.integers(0, DEBUG_COUNT_MAX)),
)


def test_every_golden_frame_has_its_meaning_written_down() -> None:
    assert VECTORS.keys() == MEANT.keys()
    assert {type(frame) for frame in MEANT.values()} == set(get_args(DraftFrame))


@pytest.mark.parametrize("name", VECTORS)
def test_a_golden_frame_means_what_its_name_says_and_goes_back_to_the_same_bytes(name: str) -> None:
    assert draft.decode(VECTORS[name][4:]) == MEANT[name]
    assert draft.encode(MEANT[name]) == VECTORS[name]


@pytest.mark.parametrize("name", VECTORS)
def test_a_truncated_frame_is_the_peers_error_unless_the_rest_is_a_valid_frame(name: str) -> None:
    body = VECTORS[name][4:]
    for end in range(len(body)):
        try:
            frame = draft.decode(body[:end])
        except RemoteProtocolError:
            continue
        # Only where a field, or a list, takes the rest of the frame can a shorter body be whole.
        assert isinstance(frame, DraftOk) or (isinstance(frame, DraftMessage) and frame.payload is not None)
        assert draft.encode(frame)[4:] == body[:end]


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_too_many_are_the_peers_error_where_no_field_takes_the_rest(name: str) -> None:
    body, frame = VECTORS[name][4:] + b"\x00", MEANT[name]
    if isinstance(frame, DraftMessage) and frame.payload is not None:
        longer = draft.decode(body)
        assert isinstance(longer, DraftMessage)
        assert longer.payload == frame.payload + b"\x00"
    else:
        with pytest.raises(RemoteProtocolError):
            draft.decode(body)


@given(frames)
def test_any_frame_goes_there_and_back(frame: DraftFrame) -> None:
    assert draft.decode(draft.encode(frame)[4:]) == frame


@given(st.sampled_from(sorted(draft.TAGS)) | st.integers(0, 255), st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_the_peers_error(tag: int, rest: bytes) -> None:
    body = bytes([tag]) + rest
    with contextlib.suppress(RemoteProtocolError):
        assert draft.encode(draft.decode(body))[4:] == body


@pytest.mark.parametrize("flags", [64, 128, 0x8000, 0xFFFF, 64 | Flag.KEY])
def test_an_unknown_flag_is_the_peers_error(flags: int) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown message flags 0x"):
        draft.decode(b"M" + flags.to_bytes(2) + bytes(40))


@given(st.integers(0, 63))
def test_flags_say_which_fields_there_are(flags: int) -> None:
    body = b"M" + flags.to_bytes(2) + frame_codec.u64(7)
    body += b"" if flags & Flag.EPHEMERAL else frame_codec.u64(1)
    body += frame_codec.u64(2) if flags & Flag.EVENT_TIME else b""
    body += frame_codec.short_bytes(b"k") if flags & Flag.KEY else b""
    body += b"" if flags & Flag.BOUNDARY else b"load"
    if flags & Flag.EPHEMERAL and flags & Flag.BOUNDARY and not flags & Flag.EOS:
        with pytest.raises(RemoteProtocolError, match="ends nothing"):
            draft.decode(body)
        return
    message = draft.decode(body)
    assert isinstance(message, DraftMessage)
    assert message.flags == flags
    assert (message.message_id, message.payload) == (
        None if flags & Flag.EPHEMERAL else 1,
        None if flags & Flag.BOUNDARY else b"load",
    )


def test_the_tags_of_the_two_versions_tell_them_apart() -> None:
    for name in VECTORS:
        with pytest.raises(RemoteProtocolError, match="unknown frame tag"):
            v3.decode(VECTORS[name][4:])
    for tag in range(10):
        with pytest.raises(RemoteProtocolError, match=f"unknown frame tag {tag}"):
            draft.decode(bytes([tag]) + bytes(20))


@pytest.mark.parametrize("tag", [b"A", b"C"])
def test_a_count_that_the_frame_cannot_hold_is_refused_before_anything_is_allocated(tag: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="truncated"):
        draft.decode(tag + frame_codec.u32(1) + frame_codec.u32(2**32 - 1))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"D\x00" + frame_codec.u32(1), "unknown fault 0"),
        (b"D\x06" + frame_codec.u32(1), "unknown fault 6"),
        (b"D\x01" + frame_codec.u32(1001), "a fault 1001 times, the limit is 1000"),
        (b"E" + frame_codec.short_bytes(b"\xff\xfe"), "UTF-8"),
        (b"!\x00\x00\x00\x00", "4 bytes too many"),
    ],
)
def test_bytes_that_are_not_a_frame_are_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        draft.decode(body)


@pytest.mark.parametrize(
    "frame",
    [
        DraftOk(-1),
        DraftOk(1, ((2**64, "", 0),)),
        Notify(2**64, "s", 0),
        DraftMessage(1, -1, b""),
        DraftMessage(1, 1, b"", event_time=-1),
        DraftMessage(1, 1, b"", key=b"k" * 65536),
        DraftMessage(1, None, None),
        Error("x" * 65536),
        Restart("host:1"),
        Debug(DebugFault.TICK, DEBUG_COUNT_MAX + 1),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_its_field_is_our_error(frame: DraftFrame) -> None:
    with pytest.raises(LocalProtocolError):
        draft.encode(frame)


def test_a_version_names_its_extensions_and_is_matched_exactly() -> None:
    both = frozenset(Extension)
    assert draft.version() == "draft"
    assert draft.version(both) == "draft+counts+debug"
    assert draft.VERSIONS["draft+debug"] == {Extension.DEBUG}
    assert draft.VERSIONS["draft+counts+debug"] == both
    assert not {"", "draft+", "draft+debug+counts", "draft+debug+debug", "Draft"} & draft.VERSIONS.keys()
