"""Framings compared with slow references: every division of the bytes, every start position, every wrong length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.connectors import framing
from procession.connectors.framing import FixedFraming, LengthFraming, LineFraming, Peek, RecordFraming, parse_framing
from procession.errors import ConfigError

Records = list[tuple[int, bytes]]


def as_lines(texts: list[bytes]) -> tuple[bytes, Records]:
    data, records = b"", []
    for text in texts:
        line = text.replace(b"\n", b"")
        records.append((len(data), line))
        data += line + b"\n"
    return data, records


def as_fixed(texts: list[bytes]) -> tuple[bytes, Records]:
    records = [(3 * number, (text + b"...")[:3]) for number, text in enumerate(texts)]
    return b"".join(record for _, record in records), records


def as_framed(texts: list[bytes]) -> tuple[bytes, Records]:
    data, records = b"", []
    for text in texts:
        records.append((len(data), text))
        data += len(text).to_bytes(4) + text
    return data, records


KINDS: list[tuple[RecordFraming, Callable[[list[bytes]], tuple[bytes, Records]]]] = [
    (LineFraming(), as_lines),
    (FixedFraming(3), as_fixed),
    (LengthFraming(), as_framed),
]


def peek_into(data: bytes) -> Peek:
    return lambda position, count: data[position : position + count]


def cut_in_pieces(kind: RecordFraming, data: bytes, piece_bytes: int) -> Records:
    """Frame the bytes as a reader does: the rest of a piece is prepended to the next one."""
    records: Records = []
    rest, position, fed = b"", 0, 0
    while fed < len(data):
        rest += data[fed : fed + piece_bytes]
        fed += piece_bytes
        cut = kind.cut(rest, is_end=fed >= len(data))
        records += zip((cut.starts + position).tolist(), cut.payloads.to_pylist(), strict=True)
        rest, position = rest[cut.end :], position + cut.end
    assert rest == b""
    return records


@pytest.mark.parametrize(("kind", "made_of"), KINDS)
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.binary(max_size=12)), piece_bytes=st.integers(1, 40))
def test_records_are_found_in_any_pieces_and_only_at_their_starts(
    kind: RecordFraming, made_of: Callable[[list[bytes]], tuple[bytes, Records]], texts: list[bytes], piece_bytes: int
) -> None:
    data, records = made_of(texts)
    assert cut_in_pieces(kind, data, piece_bytes) == records
    for position, _ in records:
        assert kind.begins_at(position, peek_into(data))
    assert not kind.begins_at(len(data), peek_into(data))
    assert not kind.begins_at(len(data) + 7, peek_into(data))


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_unframed_bytes_never_become_longer_records(data: bytes) -> None:
    for kind, _ in KINDS:
        cut = kind.cut(data, is_end=True)
        assert 0 <= cut.end <= len(data)
        assert len(cut.starts) == len(cut)
        assert sum(map(len, cut.payloads.to_pylist())) <= len(data)


def test_an_incomplete_record_waits_for_the_rest() -> None:
    for kind, made_of in KINDS[1:]:
        data, records = made_of([b"abc", b"def"])
        for length in range(len(data)):
            cut = kind.cut(data[:length], is_end=True)
            whole = [record for start, record in records if start + len(data) // 2 <= length]
            assert cut.payloads.to_pylist() == whole
            assert kind.begins_at(0, peek_into(data[:length])) == bool(whole)


def test_a_length_over_the_limit_is_refused() -> None:
    for length in (framing.RECORD_BYTES_MAX + 1, 2**32 - 1):
        data = length.to_bytes(4) + b"abc"
        assert not len(LengthFraming().cut(data, is_end=False))
        assert not LengthFraming().begins_at(0, peek_into(data))


def test_a_framing_is_parsed_from_its_name() -> None:
    for text in ("lines", "framed", "fixed:1", "fixed:64"):
        assert parse_framing(text).name == text
    for text in ("line", "", "fixed", "fixed:", "fixed:0", "fixed:x", "fixed:-1", "framed:4", f"fixed:{2**40}"):
        with pytest.raises(ConfigError) as caught:
            parse_framing(text)
        assert caught.value.next_step
