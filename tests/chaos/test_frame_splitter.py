"""The frame splitter: the bytes that go in come out, in whole frames, each with its kind."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.chaos.frame_splitter import FrameSplitter, LineSplitter, PieceSplitter, StreamSplitter
from procession.wire import two_phase_commit, v3
from procession.wire.frame_codec import FRAME_BYTES_MAX
from procession.wire.messages import TWOPC_STREAM, Frame, Hello, Message, Phase1, Phase2, Reply

FRAMES: list[tuple[str, Frame]] = [
    ("hello", Hello("0.0.1", b"", "p", "i")),
    ("message", Message(1, 0, 0, b"key", b"a" * 40)),
    ("phase1", two_phase_commit.wrap(Phase1("t:c_id=1", ((1, 0, 10),)))),
    ("phase2", two_phase_commit.wrap(Phase2("t:c_id=1", True))),
    ("reply", two_phase_commit.wrap(Reply("t:c_id=1", True))),
    ("refusal", two_phase_commit.wrap(Reply("t:c_id=2", False))),
    ("message", Message(TWOPC_STREAM, 0, 0, b"", b"no two-phase message")),
]
STREAM = b"".join(v3.encode(frame) for _, frame in FRAMES)


def fed(splitter: StreamSplitter, data: bytes, cuts: list[int]) -> list[tuple[bytes, str]]:
    edges = [0, *sorted(cuts), len(data)]
    return [tuple(piece) for start, end in pairwise(edges) for piece in splitter.feed(data[start:end])]


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_however_a_stream_is_cut_the_pieces_are_its_frames(cuts: list[int]) -> None:
    assert fed(FrameSplitter(), STREAM, cuts) == [(v3.encode(frame), kind) for kind, frame in FRAMES]


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_from_bytes_that_are_no_frame_on_nothing_is_split_and_nothing_is_held_back(length: int) -> None:
    noise = length.to_bytes(4, "big") + b" noise"
    splitter = FrameSplitter()
    hello = v3.encode(FRAMES[0][1])
    assert [tuple(piece) for piece in splitter.feed(hello + noise)] == [(hello, "hello"), (noise, "")]
    assert [tuple(piece) for piece in splitter.feed(hello)] == [(hello, "")]


def test_a_frame_of_the_largest_size_is_waited_for() -> None:
    assert FrameSplitter().feed(FRAME_BYTES_MAX.to_bytes(4, "big") + b"x") == []


@given(st.lists(st.integers(0, 17), max_size=4))
def test_lines_are_split_at_their_ends_and_the_rest_waits(cuts: list[int]) -> None:
    assert fed(LineSplitter(), b'{"a":1}\n\n{"b":2}\n{"c"', cuts) == [
        (b'{"a":1}\n', "line"),
        (b"\n", "line"),
        (b'{"b":2}\n', "line"),
    ]


def test_bytes_of_other_systems_pass_as_they_were_read() -> None:
    assert fed(PieceSplitter(), b"abcdef", [2]) == [(b"ab", ""), (b"cdef", "")]
