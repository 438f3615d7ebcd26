"""Changes of PostgreSQL tables: messages of pgoutput, built by its documentation, and the records that they become."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.connectors.postgres_changes import Change, ChangeDecoder, lsn_number, lsn_text
from procession.errors import StorageError
from procession.wire.frame_codec import SHORT_BYTES_MAX

LSN, XID = 0x1_06B374D8, 771
COMMITTED_US = 1_000_000  # a second after 2000 began
INT4, TEXT, BOOL, NUMERIC, JSONB = 23, 25, 16, 1700, 3802
TABLE = 16_401
UNCHANGED = object()
"""A large value that an update leaves as it is."""


def begin(lsn: int = LSN) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, COMMITTED_US, XID)


def relation(*columns: tuple[str, int, bool], identity: bytes = b"d", table: int = TABLE) -> bytes:
    """Name, type and whether it is part of the key, of each column. The identity `f` means that whole rows are sent."""
    described = b"".join(
        bytes([is_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, -1) for name, oid, is_key in columns
    )
    return b"R" + struct.pack(">I", table) + b"shop\0orders\0" + identity + struct.pack(">H", len(columns)) + described


def values(*texts: Any) -> bytes:
    found = struct.pack(">H", len(texts))
    for text in texts:
        if text is None:
            found += b"n"
        elif text is UNCHANGED:
            found += b"u"
        else:
            found += b"t" + struct.pack(">I", len(text.encode())) + text.encode()
    return found


def of_table(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", TABLE) + body


def insert(*texts: Any) -> bytes:
    return of_table(b"I", b"N" + values(*texts))


ORDERS = relation(("id", INT4, True), ("note", TEXT, False))
WHOLE = relation(("id", INT4, True), ("note", TEXT, False), identity=b"f")
TAIL = {"xid": XID, "lsn": "1/6B374D8", "committed_at": "2000-01-01T00:00:01.000000Z"}


def changes(*messages: bytes, keys: dict[str, tuple[str, ...]] | None = None) -> list[Change]:
    decoder = ChangeDecoder(keys or {})
    return [change for message in (begin(), *messages) for change in decoder.decode(message)]


def payloads(*messages: bytes, keys: dict[str, tuple[str, ...]] | None = None) -> list[dict[str, Any]]:
    """The records, without what is the same in all of a transaction."""
    found = [json.loads(change.payload) for change in changes(*messages, keys=keys)]
    for payload in found:
        assert {name: payload.pop(name) for name in TAIL} == TAIL
        assert payload.pop("table") == "shop.orders"
    return found


def test_an_insert_has_the_row_and_its_key_and_when_it_was_committed() -> None:
    (change,) = changes(ORDERS, insert("7", "ä"))
    assert (change.commit_lsn, change.committed_ns) == (LSN, 946_684_801 * 10**9)
    assert change.key == b'{"id":7}'
    assert payloads(ORDERS, insert("7", None)) == [{"op": "insert", "key": {"id": 7}, "after": {"id": 7, "note": None}}]
    assert "ä" in change.payload.decode()


def test_an_update_that_keeps_the_key_is_one_record() -> None:
    assert payloads(ORDERS, of_table(b"U", b"N" + values("7", "b"))) == [
        {"op": "update", "key": {"id": 7}, "after": {"id": 7, "note": "b"}}
    ]
    assert payloads(ORDERS, of_table(b"U", b"K" + values("7", None) + b"N" + values("7", "b"))) == [
        {"op": "update", "key": {"id": 7}, "after": {"id": 7, "note": "b"}}
    ], "of the old row only the key is known"
    assert payloads(WHOLE, of_table(b"U", b"O" + values("7", "a") + b"N" + values("7", "b"))) == [
        {"op": "update", "key": {"id": 7}, "before": {"id": 7, "note": "a"}, "after": {"id": 7, "note": "b"}}
    ]


@pytest.mark.parametrize("old", [b"K", b"O"])
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(old: bytes) -> None:
    delete, after = payloads(ORDERS, of_table(b"U", old + values("7", "a") + b"N" + values("8", "a")))
    assert after == {"op": "insert", "key": {"id": 8}, "after": {"id": 8, "note": "a"}, "old_key": {"id": 7}}
    before = {"before": {"id": 7, "note": "a"}} if old == b"O" else {}
    assert delete == {"op": "delete", "key": {"id": 7}, **before, "new_key": {"id": 8}}


def test_a_value_that_the_log_does_not_repeat_is_taken_from_the_old_row_or_named() -> None:
    assert payloads(ORDERS, of_table(b"U", b"N" + values("7", UNCHANGED))) == [
        {"op": "update", "key": {"id": 7}, "after": {"id": 7}, "unchanged": ["note"]}
    ]
    (update,) = payloads(WHOLE, of_table(b"U", b"O" + values("7", "large") + b"N" + values("7", UNCHANGED)))
    assert update["after"] == {"id": 7, "note": "large"}
    assert "unchanged" not in update


def test_a_delete_has_the_key_and_the_row_if_it_is_sent() -> None:
    assert payloads(ORDERS, of_table(b"D", b"K" + values("7", None))) == [{"op": "delete", "key": {"id": 7}}]
    assert payloads(WHOLE, of_table(b"D", b"O" + values("7", "a"))) == [
        {"op": "delete", "key": {"id": 7}, "before": {"id": 7, "note": "a"}}
    ]


def test_each_truncated_table_is_a_record_without_a_key() -> None:
    other = relation(("id", INT4, True), table=TABLE + 1)
    message = b"T" + struct.pack(">IBII", 2, 0, TABLE, TABLE + 1)
    found = changes(ORDERS, other, message)
    assert [change.key for change in found] == [b"", b""]
    assert payloads(ORDERS, other, message) == [{"op": "truncate"}] * 2


def test_a_table_that_sends_whole_rows_has_its_primary_key() -> None:
    everything = relation(("id", INT4, True), ("note", TEXT, True), identity=b"f")
    (found,) = payloads(everything, insert("7", "a"), keys={"shop.orders": ("note",)})
    assert found["key"] == {"note": "a"}
    (found,) = payloads(everything, insert("7", "a"))
    assert found["key"] == {"id": 7, "note": "a"}, "without one, the row is its key"
    (found,) = payloads(ORDERS, insert("7", "a"), keys={"shop.orders": ("note",)})
    assert found["key"] == {"id": 7}, "the server says what identifies a row"


@pytest.mark.parametrize(
    ("oid", "text", "shown"),
    [
        (INT4, "-7", "-7"),
        (NUMERIC, "12345678901234567890.10", "12345678901234567890.10"),
        (NUMERIC, "NaN", '"NaN"'),
        (701, "-Infinity", '"-Infinity"'),
        (BOOL, "t", "true"),
        (BOOL, "f", "false"),
        (JSONB, '{"a": [1]}', '{"a": [1]}'),
        (TEXT, 'a"\n', r'"a\"\n"'),
        (TEXT, "7", '"7"'),
    ],
)
def test_a_value_is_shown_with_every_digit(oid: int, text: str, shown: str) -> None:
    (change,) = changes(relation(("x", oid, True)), insert(text))
    assert f'"after":{{"x":{shown}}}' in change.payload.decode()


def test_the_same_messages_give_the_same_records_in_another_pass() -> None:
    messages = [ORDERS, insert("7", "a"), of_table(b"D", b"K" + values("7", None))]
    decoder = ChangeDecoder({})
    passes = [[change for message in (begin(), *messages) for change in decoder.decode(message)] for _ in range(2)]
    assert passes[0] == passes[1] == changes(*messages)


def test_a_table_that_was_altered_is_read_by_its_new_description() -> None:
    wider = relation(("id", INT4, True), ("note", TEXT, False), ("more", BOOL, False))
    assert payloads(ORDERS, wider, insert("7", "a", "t"))[0]["after"] == {"id": 7, "note": "a", "more": True}


@pytest.mark.parametrize("length", [SHORT_BYTES_MAX - 10, SHORT_BYTES_MAX, 2 * SHORT_BYTES_MAX])
def test_a_key_that_is_too_long_becomes_its_digest(length: int) -> None:
    keyed = relation(("name", TEXT, True))
    one, other = changes(keyed, insert("a" * length), insert("b" * length))
    assert len(one.key) <= SHORT_BYTES_MAX
    assert one.key != other.key
    whole = json.dumps({"name": "a" * length}, separators=(",", ":")).encode()
    assert (one.key == whole) is (len(whole) <= SHORT_BYTES_MAX)


@pytest.mark.parametrize("message", [begin(), ORDERS], ids=["begin", "relation"])
def test_a_message_truncated_anywhere_is_refused_with_a_next_step(message: bytes) -> None:
    for length in range(1, len(message)):
        with pytest.raises(StorageError, match="cannot be read") as caught:
            changes(message[:length])
        assert caught.value.next_step


@pytest.mark.parametrize("rest", [b"", b"N", b"N\0", b"N\0\2", b"N\0\1t", b"N\0\1t\0\0"])
def test_a_row_that_is_cut_is_refused(rest: bytes) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        changes(ORDERS, of_table(b"I", rest))


def test_a_change_of_a_table_that_was_not_described_is_refused() -> None:
    with pytest.raises(StorageError, match="KeyError in a message of kind b'I'"):
        changes(insert("7", "a"))


def test_messages_without_changes_are_passed_over() -> None:
    assert changes(b"C" + bytes(25), b"O" + bytes(8), b"Y" + bytes(8), b"M" + bytes(8)) == []


@given(st.integers(0, 2**64 - 1))
def test_a_position_in_the_log_is_read_back(lsn: int) -> None:
    assert lsn_number(lsn_text(lsn)) == lsn


def test_a_position_is_written_as_postgresql_writes_it() -> None:
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert lsn_text(0) == "0/0"
