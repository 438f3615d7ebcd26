"""Frames of the object service are decoded to the encoded values, and no other bytes are accepted."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.sos import sos_frames as sf
from procession.sos.volume_rules import (
    MEMBERS_MAX,
    OBJECTS_MAX,
    OLD_CONFIGS_MAX,
    ObjectHead,
    ObjectState,
    QuorumConfig,
    RefusalCode,
    VolumeState,
)
from procession.wire.frame_codec import u32

NUMBERS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 2**32 - 1)
NAMES = st.text(max_size=40)
IDENTITIES = st.binary(min_size=16, max_size=16)
CONFIGS = st.builds(QuorumConfig, st.lists(IDENTITIES, max_size=5).map(tuple), st.integers(0, 255))
HEADS = st.builds(ObjectHead, NUMBERS, NUMBERS, SMALL, CONFIGS, st.lists(CONFIGS, max_size=2).map(tuple))
OBJECTS = st.builds(ObjectState, HEADS, NUMBERS, NUMBERS, SMALL)
STATES = st.builds(
    VolumeState,
    IDENTITIES,
    st.integers(1, 2**64 - 1),
    IDENTITIES,
    NUMBERS,
    st.dictionaries(st.integers(1, 2**64 - 1), OBJECTS, max_size=3),
)
DATA = st.binary(max_size=60)
FRAMES = st.one_of(
    st.builds(sf.SosError, NAMES),
    st.builds(sf.SosHello, SMALL, DATA, NAMES),
    st.builds(sf.SosWelcome, SMALL, SMALL),
    st.builds(sf.FormatVolume, SMALL, NAMES),
    st.builds(sf.DescribeVolume, SMALL, NAMES),
    st.builds(sf.ListVolumes, SMALL, NAMES),
    st.builds(sf.ClaimVolume, SMALL, NAMES, NUMBERS, IDENTITIES),
    st.builds(sf.CreateObject, SMALL, NAMES, NUMBERS, NUMBERS, HEADS, NUMBERS),
    st.builds(sf.AppendChunk, SMALL, NAMES, NUMBERS, NUMBERS, NUMBERS, SMALL, st.booleans(), DATA),
    st.builds(sf.ReadChunks, SMALL, NAMES, NUMBERS, NUMBERS, SMALL),
    st.builds(sf.RetainFrom, SMALL, NAMES, NUMBERS, NUMBERS),
    st.builds(sf.VolumeReply, SMALL, st.none() | STATES),
    st.builds(sf.VolumeReply, SMALL, st.just(VolumeState(b"i" * 16))),
    st.builds(sf.ProgressReply, SMALL, NUMBERS, NUMBERS, NUMBERS, SMALL),
    st.builds(
        sf.ChunksReply, SMALL, NUMBERS, NUMBERS, SMALL, st.lists(st.tuples(SMALL, SMALL), max_size=4).map(tuple), DATA
    ),
    st.builds(sf.NamesReply, SMALL, st.lists(NAMES, max_size=4).map(tuple)),
    st.builds(sf.RefusedReply, SMALL, st.sampled_from(RefusalCode), NUMBERS, NAMES),
)


@given(FRAMES)
def test_every_frame_comes_back_as_it_was(value: sf.SosFrame) -> None:
    data = sf.encode(value)
    assert data[:4] == u32(len(data) - 4)
    assert sf.decode(data[4:]) == value


@given(FRAMES, st.data())
def test_a_frame_with_a_flipped_bit_is_no_frame_or_its_data_does_not_match(
    value: sf.SosFrame, draw: st.DataObject
) -> None:
    body = bytearray(sf.encode(value)[4:])
    data_bytes = len(getattr(value, "data", b""))
    position = draw.draw(st.integers(0, len(body) - 1 - data_bytes))
    body[position] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        sf.decode(bytes(body))


@given(FRAMES, st.data())
def test_a_truncated_or_extended_frame_is_refused(value: sf.SosFrame, draw: st.DataObject) -> None:
    body = sf.encode(value)[4:]
    data_bytes = len(getattr(value, "data", b""))
    length = draw.draw(st.integers(1, len(body) - 1 - data_bytes))
    with pytest.raises(RemoteProtocolError):
        sf.decode(body[:length])
    if type(value) not in sf.WITH_DATA:
        with pytest.raises(RemoteProtocolError):
            sf.decode(body + b"x")


def chunks(data: bytes, *lengths: int, before: int = 0) -> sf.ChunksReply:
    found, position, running = [], 0, before
    for length in lengths:
        running = zlib.crc32(data[position : position + length], running)
        found.append((length, running))
        position += length
    return sf.ChunksReply(1, 2, 0, before, tuple(found), data)


def test_the_reader_checks_the_writers_checksums() -> None:
    reply = chunks(b"abcdef", 2, 4, before=77)
    assert [data for data, _ in sf.checked_chunks(reply)] == [b"ab", b"cdef"]
    for wrong in (
        sf.ChunksReply(1, 2, 0, 76, reply.chunks, reply.data),
        sf.ChunksReply(1, 2, 0, 77, reply.chunks, b"abcdeg"),
        sf.ChunksReply(1, 2, 0, 77, reply.chunks, b"abcde"),
        sf.ChunksReply(1, 2, 0, 77, reply.chunks, b"abcdefg"),
        sf.ChunksReply(1, 2, 0, 77, (*reply.chunks, (0, reply.chunks[-1][1])), b"abcdef"),
    ):
        with pytest.raises(RemoteProtocolError):
            sf.checked_chunks(wrong)


def test_the_longest_description_of_a_volume_fits_a_frame() -> None:
    config = QuorumConfig(tuple(bytes([n]) * 16 for n in range(MEMBERS_MAX)), MEMBERS_MAX)
    known = ObjectState(ObjectHead(1, 2, 3, config, (config,) * OLD_CONFIGS_MAX), 4, 5, 6)
    state = VolumeState(b"i" * 16, 1, b"t" * 16, 0, dict.fromkeys(range(1, OBJECTS_MAX + 1), known))
    data = sf.encode(sf.VolumeReply(1, state))
    assert len(data) <= sf.VOLUME_BYTES_MAX <= sf.FRAME_BYTES_MAX
    assert sf.decode(data[4:]) == sf.VolumeReply(1, state)


def test_a_frame_over_the_limit_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        sf.encode(sf.AppendChunk(1, "v", 1, 1, 0, 0, False, bytes(sf.FRAME_BYTES_MAX)))


def test_an_unknown_tag_or_code_is_the_peers_error() -> None:
    with pytest.raises(RemoteProtocolError):
        sf.decode(b"\x63")
    body = bytearray(sf.encode(sf.RefusedReply(1, RefusalCode.LIMIT, 0, ""))[4:])
    body[5] = 99
    body[-4:] = u32(zlib.crc32(body[:-4]))
    with pytest.raises(RemoteProtocolError):
        sf.decode(bytes(body))
