"""Messages as columns and as single values are equal."""

from __future__ import annotations

import pytest

from procession.wire.messages import LARGE_BYTES_MIN, Message, MessageFields, Messages

ROWS: list[MessageFields] = [
    (7, 1, -5, b"k", b"a"),
    (7, 2, 0, b"", b""),
    (8, 2**64 - 1, 2**63 - 1, b"\xff", b"b"),
    (7, 3, 9, b"k", b"c"),
]
COLUMNS = Messages.of(*zip(*ROWS, strict=True))


@pytest.mark.parametrize("messages", [COLUMNS, Messages.from_rows(ROWS)], ids=["columns", "few"])
def test_few_messages_are_what_their_columns_are(messages: Messages) -> None:
    assert len(messages) == 4
    assert list(messages) == [Message(*row) for row in ROWS]
    assert messages.ids() == [1, 2, 2**64 - 1, 3]
    assert messages.bodies() == [b"a", b"", b"b", b"c"]
    assert messages == COLUMNS
    assert messages.slice(1, 3) == COLUMNS.slice(1, 3)
    assert messages.slice(0, 0).stream_ids.tolist() == messages.slice(4, 4).payloads.to_pylist() == []
    assert [(stream_id, list(run)) for stream_id, run in messages.by_stream()] == [
        (7, [Message(*ROWS[0]), Message(*ROWS[1])]),
        (8, [Message(*ROWS[2])]),
        (7, [Message(*ROWS[3])]),
    ]


def test_a_column_of_few_messages_is_made_once() -> None:
    few = Messages.from_rows(ROWS)
    assert few.payloads is few.payloads
    assert few.keys.to_pylist() == [b"k", b"", b"\xff", b"k"]
    with pytest.raises(AttributeError):
        few.nothing  # noqa: B018


def test_a_large_payload_is_a_part_of_its_own_and_all_parts_are_the_messages() -> None:
    large = b"x" * LARGE_BYTES_MIN
    rows: list[MessageFields] = [(7, number, 0, b"", large if number in (2, 3, 5) else b"s") for number in range(7)]
    parts = [part.ids() for part in Messages.from_rows(rows).parts()]
    assert parts == [[0, 1], [2], [3], [4], [5], [6]]
    assert [part.ids() for part in Messages.from_rows(rows[2:3]).parts()] == [[2]]
    assert list(COLUMNS.parts()) == [COLUMNS]
