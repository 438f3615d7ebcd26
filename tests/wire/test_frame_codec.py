"""Framing: the same frames are decoded however the bytes are divided, and a bad length never allocates memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.wire import frame_codec
from procession.wire.frame_codec import Framer


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_out_whole_however_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(frame_codec.frame, bodies))
    framer, found, position, turn = Framer(), [], 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        found += framer.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    assert found == bodies


@pytest.mark.parametrize("length", [101, 2**32 - 1], ids=["one over", "4 GiB"])
def test_a_length_over_the_limit_is_the_peers_error_at_its_length_word(length: int) -> None:
    framer = Framer(frame_bytes_max=100)
    assert list(framer.feed(frame_codec.frame(b"x" * 100))) == [b"x" * 100]
    with pytest.raises(RemoteProtocolError, match="limit is 100"):
        next(framer.feed(frame_codec.u32(length)))


def test_an_empty_frame_is_the_peers_error() -> None:
    with pytest.raises(RemoteProtocolError, match="empty frame"):
        list(Framer().feed(frame_codec.u32(0)))


def test_frames_before_a_bad_length_are_handed_out_first() -> None:
    bodies = Framer(frame_bytes_max=100).feed(frame_codec.frame(b"a") + frame_codec.u32(101))
    assert next(bodies) == b"a"
    with pytest.raises(RemoteProtocolError):
        next(bodies)


def test_the_buffer_that_frames_came_in_may_be_used_again() -> None:
    framer, buffer = Framer(), bytearray(frame_codec.frame(b"first") + frame_codec.frame(b"second")[:6])
    assert list(framer.feed(memoryview(buffer))) == [b"first"]
    buffer[:] = bytes(len(buffer))
    assert list(framer.feed(frame_codec.frame(b"second")[6:])) == [b"second"]
