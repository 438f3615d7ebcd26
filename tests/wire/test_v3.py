"""Version 3, byte for byte: golden frames of existing peers, every truncation of every frame, and any frame encoded and
decoded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import columns, frame_codec, two_phase_commit, v3
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Restart,
    TwoPhase,
    WorkersLeft,
)

LINES = (Path(__file__).parent / "vectors" / "connector-v3-frames.txt").read_text().splitlines()
VECTORS = {line.rsplit(maxsplit=1)[0].strip(): bytes.fromhex(line.rsplit(maxsplit=1)[1]) for line in LINES if line}

TACOS = b"Dragons-Love-Tacos"
TXN = "Passthrough-w-initializer-id-12345:c_id=3"
MEANT: dict[str, Frame | TwoPhase] = {
    "HELLO source": Hello("0.0.1", TACOS, "celsius at least once", "instance"),
    "HELLO sink": Hello("v0.0.1", TACOS, "Passthrough", "initializer"),
    "OK 500": Ok(500),
    'ERROR "Bad cookie"': Error("Bad cookie"),
    'NOTIFY 7 "s" por 0': Notify(7, "s", 0),
    "NOTIFY_ACK ok 7 none-seen": NotifyAck(True, 7, NOTHING_COMMITTED),
    "NOTIFY_ACK no 7 por 0": NotifyAck(False, 7, 0),
    'MESSAGE 7 id 49 et 0 key "k" "hi\\n"': Message(7, 49, 0, b"k", b"hi\n"),
    'MESSAGE 1 id 202 no key "x\\n" (sink data)': Message(1, 202, 0, b"", b"x\n"),
    "MESSAGE 7 id 5 et -1 no key empty": Message(7, 5, -1, b"", b""),
    "EOS_MESSAGE 7": Eos(7),
    "ACK credits 450 [(7,49),(8,0)]": Ack(450, ((7, 49), (8, 0))),
    "ACK credits 10 []": Ack(10),
    "RESTART no address": Restart(),
    "RESTART 127.0.0.1:7110": Restart("127.0.0.1:7110"),
    "2PC 201 LIST_UNCOMMITTED rtag 77778": ListUncommitted(77778),
    "2PC 202 REPLY_UNCOMMITTED rtag 77778 []": ReplyUncommitted(77778, ()),
    "2PC 202 REPLY_UNCOMMITTED [txn]": ReplyUncommitted(77778, (TXN,)),
    "2PC 203 PHASE1 txn [(1,202,460)]": Phase1(TXN, ((1, 202, 460),)),
    "2PC 204 REPLY txn commit": Reply(TXN, True),
    "2PC 204 REPLY txn abort": Reply(TXN, False),
    "2PC 205 PHASE2 txn commit": Phase2(TXN, True),
    "2PC 205 PHASE2 txn abort": Phase2(TXN, False),
    "2PC 206 WORKERS_LEFT rtag 7 [w3,w2]": WorkersLeft(7, ("w3", "w2")),
}

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
short = st.text(max_size=20)
keys = st.binary(max_size=20)
frames = st.one_of(
    st.builds(Hello, short, keys, short, short),
    st.builds(Ok, u32),
    st.builds(Error, short),
    st.builds(Notify, u64, short, u64),
    st.builds(NotifyAck, st.booleans(), u64, u64),
    st.builds(Message, u64, u64, i64, keys, st.binary(max_size=50)),
    st.builds(Ack, u32, st.lists(st.tuples(u64, u64), max_size=4).map(tuple)),
    st.builds(Restart, st.none() | st.text(min_size=1, max_size=20)),
    st.builds(Eos, u64, st.none() | u64),
)
txns = st.lists(short, max_size=3).map(tuple)
two_phase = st.one_of(
    st.builds(ListUncommitted, u64),
    st.builds(ReplyUncommitted, u64, txns),
    st.builds(Phase1, short, st.lists(st.tuples(u64, u64, u64), max_size=3).map(tuple)),
    st.builds(Reply, short, st.booleans()),
    st.builds(Phase2, short, st.booleans()),
    st.builds(WorkersLeft, u64, txns),
)


def test_every_golden_frame_has_its_meaning_written_down() -> None:
    assert VECTORS.keys() == MEANT.keys()


@pytest.mark.parametrize("name", VECTORS)
def test_a_golden_frame_means_what_its_name_says_and_goes_back_to_the_same_bytes(name: str) -> None:
    data = VECTORS[name]
    frame = v3.decode(data[4:])
    if name.startswith("2PC"):
        assert isinstance(frame, Message)
        message = two_phase_commit.decode(frame.payload)
        assert message == MEANT[name]
        assert two_phase_commit.wrap(message) == frame
    else:
        assert frame == MEANT[name]
    assert v3.encode(frame) == data


@pytest.mark.parametrize("name", VECTORS)
def test_a_truncated_frame_is_the_peers_error_unless_the_rest_is_a_valid_frame(name: str) -> None:
    body = VECTORS[name][4:]
    for end in range(len(body)):
        try:
            frame = v3.decode(body[:end])
        except RemoteProtocolError:
            continue
        # Only where the text lets a field be any length, or absent, can a shorter body be whole.
        assert isinstance(frame, Message | Restart)
        assert v3.encode(frame)[4:] == body[:end] or body[:end] == b"\x07"


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("2PC")])
def test_every_cut_of_a_two_phase_commit_message_is_the_peers_error(name: str) -> None:
    frame = v3.decode(VECTORS[name][4:])
    assert isinstance(frame, Message)
    for end in range(len(frame.payload)):
        with pytest.raises(RemoteProtocolError):
            two_phase_commit.decode(frame.payload[:end])


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_too_many_are_the_peers_error_where_no_field_takes_the_rest(name: str) -> None:
    body = VECTORS[name][4:] + b"\x00"
    if body[0] == v3.MESSAGE_TAG:
        frame = v3.decode(body)
        assert isinstance(frame, Message)
        if name.startswith("2PC"):
            with pytest.raises(RemoteProtocolError):
                two_phase_commit.decode(frame.payload)
    else:
        with pytest.raises(RemoteProtocolError):
            v3.decode(body)


@given(frames)
def test_any_frame_goes_there_and_back(frame: Frame) -> None:
    assert v3.decode(v3.encode(frame)[4:]) == frame


@given(two_phase)
def test_any_two_phase_commit_message_goes_there_and_back(message: TwoPhase) -> None:
    assert two_phase_commit.decode(two_phase_commit.encode(message)) == message


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_the_peers_error(body: bytes) -> None:
    for decode in (v3.decode, two_phase_commit.decode):
        with contextlib.suppress(RemoteProtocolError):
            decode(body)


@pytest.mark.parametrize("tag", [9, 0x48, 201, 255])
def test_an_unknown_tag_is_the_peers_error(tag: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown frame tag {tag}"):
        v3.decode(bytes([tag]) + bytes(20))


def test_an_end_of_stream_may_carry_a_message_id_and_a_restart_may_have_no_body() -> None:
    assert v3.decode(b"\x08" + frame_codec.u64(7) + frame_codec.u64(9)) == Eos(7, 9)
    assert v3.decode(b"\x07") == Restart(None)


def test_a_count_that_the_frame_cannot_hold_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(RemoteProtocolError, match="truncated"):
        v3.decode(b"\x06" + frame_codec.u32(1) + frame_codec.u32(2**32 - 1))


def test_a_string_that_is_not_utf8_is_the_peers_error() -> None:
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        v3.decode(b"\x02" + frame_codec.short_bytes(b"\xff\xfe"))


@pytest.mark.parametrize(
    "frame",
    [Ok(-1), Ok(2**32), Notify(2**64, "s", 0), Message(1, 1, 2**63, b"", b""), Error("x" * 65536), Eos(-1)],
    ids=lambda frame: type(frame).__name__,
)
def test_a_value_that_does_not_fit_its_field_is_our_error(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError):
        v3.encode(frame)


def test_a_cookie_is_not_shown() -> None:
    assert "Tacos" not in repr(Hello("0.0.1", TACOS, "p", "i"))


rows = st.lists(st.tuples(u64, i64, keys, st.binary(max_size=50)), max_size=20)


@pytest.fixture(params=["compiled", "not compiled"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    columns.make_ready()
    if request.param == "not compiled":
        monkeypatch.setattr(columns, "_kernels", None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(u64, rows, st.booleans(), st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 3))
@pytest.mark.usefixtures("encoder")
def test_messages_encoded_by_columns_are_those_encoded_one_by_one(
    stream_id: int, rows: list[tuple[int, int, bytes, bytes]], has_keys: bool, kind: pa.DataType, skipped: int
) -> None:
    message_ids = np.array([row[0] for row in rows], dtype=np.uint64)[skipped:]
    event_times = pa.array([row[1] for row in rows], pa.int64())[skipped:]
    key_column = pa.array([row[2] for row in rows], kind)[skipped:] if has_keys else None
    payloads = pa.array([row[3] for row in rows], kind)[skipped:]
    expected = b"".join(
        v3.encode(Message(stream_id, message_id, event_time, key if has_keys else b"", payload))
        for message_id, event_time, key, payload in rows[skipped:]
    )
    assert v3.encode_messages(stream_id, message_ids, event_times, key_column, payloads).to_pybytes() == expected


@pytest.mark.parametrize(
    ("key_column", "payloads"),
    [
        (None, [b"x", None]),
        ([b"k", None], [b"x", b"y"]),
        ([b"k"], [b"x", b"y"]),
        ([b"k" * 65536, b""], [b"x", b"y"]),
        (None, [b"x" * 200, b"y"]),
    ],
    ids=["null payload", "null key", "short column", "long key", "long frame"],
)
@pytest.mark.usefixtures("encoder")
def test_columns_that_cannot_be_frames_are_our_error(
    key_column: list[bytes | None] | None, payloads: list[bytes | None]
) -> None:
    encoded_keys = None if key_column is None else pa.array(key_column, pa.binary())
    with pytest.raises(LocalProtocolError):
        v3.encode_messages(1, [1, 2], [0, 0], encoded_keys, pa.array(payloads, pa.binary()), frame_bytes_max=100)
