"""Converts messages of PostgreSQL's output plugin `pgoutput` to records in JSON, one for each change of a table.

Invariant: the same messages give the same records, in commit order, so a replay can skip the records that are already
stored by their count. Values keep every digit: a number is written as PostgreSQL prints it. Upstream:
`connectors/postgres_source`; downstream: `sdk/push_source`. Pure.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from procession.errors import StorageError
from procession.wire.frame_codec import SHORT_BYTES_MAX

EPOCH_2000_US = 946_684_800_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BOOL = 16
NUMBERS = frozenset({20, 21, 23, 26, 700, 701, 1700})
"""Types that are numbers in JSON: int8, int2, int4, oid, float4, float8, numeric."""
JSONS = frozenset({114, 3802})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as pgoutput describes it."""

    name: str
    type_oid: int
    is_key: bool

    def as_json(self, text: str) -> str:
        if self.type_oid in JSONS:
            return text
        if self.type_oid == BOOL:
            return "true" if text == "t" else "false"
        if self.type_oid in NUMBERS and text[-1:].isdigit():  # not NaN or Infinity
            return text
        return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as pgoutput describes it."""

    table: str
    columns: tuple[RelationColumn, ...]
    names: tuple[str, ...] = field(compare=False)
    """The names of the columns as JSON."""


UNCHANGED = object()
"""Marks a large value that an update has not changed. The log does not repeat it."""

Values = list[str | object | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a row, or of a whole table.

    Args:
        commit_lsn: End of the transaction in the log. Transactions arrive in this order.
        committed_ns: Time of the commit, in nanoseconds since 1970.
        key: The values of the key as a JSON object; empty for a truncated table.
        payload: The record.
    """

    commit_lsn: int
    committed_ns: int
    key: bytes
    payload: bytes


class ChangeDecoder:
    """Decodes messages into changes. A decoder can read a slot several times, because each pass describes its tables
    again."""

    def __init__(self, primary_keys: Mapping[str, Collection[str]]) -> None:
        """`primary_keys` has the key of each table that logs whole rows instead of keys."""
        self._primary_keys = primary_keys
        self._tables: dict[int, Relation] = {}
        """The tables that messages have described, by id."""
        self._commit_lsn = 0
        self._committed_us = 0
        self._tail = ""

    def decode(self, message: bytes) -> Iterator[Change]:
        """Yield the changes of one message. Raises StorageError for an unknown message."""
        try:
            yield from self._decode(message)
        except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
            raise StorageError(
                f"PostgreSQL sent a change that cannot be read: {type(error).__name__} in a message of kind"
                f" {message[:1]!r}.",
                next_step="Report this as a bug of Procession, with the version of the server.",
            ) from error

    def _decode(self, message: bytes) -> Iterator[Change]:
        kind, body = message[:1], memoryview(message)
        old = message[5:6]
        if kind == b"B":
            self._commit_lsn, self._committed_us, xid = struct.unpack_from(">QqI", body, 1)
            self._tail = (
                f'"xid":{xid},"lsn":"{lsn_text(self._commit_lsn)}","committed_at":"{_moment(self._committed_us)}"}}'
            )
        elif kind == b"R":
            self._describe(body)
        elif kind == b"I":
            after, _ = _tuple(body, 6)
            yield self._change("insert", self._relation(body, 1), None, after)
        elif kind == b"U":
            before, place = None, 5
            if old != b"N":
                before, place = _tuple(body, 6)
            after, _ = _tuple(body, place + 1)
            yield from self._update(self._relation(body, 1), before, after, is_whole=old == b"O")
        elif kind == b"D":
            before, _ = _tuple(body, 6)
            yield self._change("delete", self._relation(body, 1), before, None, is_whole=old == b"O")
        elif kind == b"T":
            (count,) = struct.unpack_from(">I", body, 1)
            for number in range(count):
                relation = self._relation(body, 6 + 4 * number)
                payload = f'{{"op":"truncate","table":{json.dumps(relation.table)},{self._tail}'
                yield Change(self._commit_lsn, self._ns, b"", payload.encode())

    @property
    def _ns(self) -> int:
        return (self._committed_us + EPOCH_2000_US) * 1000

    def _update(self, relation: Relation, before: Values | None, after: Values, *, is_whole: bool) -> Iterator[Change]:
        """Yield the changes of an update: a delete and an insert if the key has changed, so that consumers can store
        rows by key."""
        if before is None:
            yield self._change("update", relation, None, after)
            return
        if is_whole:
            after = [old if new is UNCHANGED else new for old, new in zip(before, after, strict=True)]
        old_key, new_key = (_object(relation, values, is_key_only=True) for values in (before, after))
        if old_key == new_key:
            yield self._change("update", relation, before, after, is_whole=is_whole)
            return
        yield self._change("delete", relation, before, None, is_whole=is_whole, more=f'"new_key":{new_key},')
        yield self._change("insert", relation, None, after, more=f'"old_key":{old_key},')

    def _change(
        self,
        op: str,
        relation: Relation,
        before: Values | None,
        after: Values | None,
        *,
        is_whole: bool = False,
        more: str = "",
    ) -> Change:
        """Return a change. `is_whole`: `before` contains the whole row, not only its key."""
        identity = before if after is None else after
        assert identity is not None
        key = _object(relation, identity, is_key_only=True)
        parts = [f'"op":"{op}","table":{json.dumps(relation.table)},"key":{key}']
        if before is not None and is_whole:
            parts.append(f'"before":{_object(relation, before)}')
        if after is not None:
            parts.append(f'"after":{_object(relation, after)}')
            if UNCHANGED in after:
                missing = [name for name, value in zip(relation.names, after, strict=True) if value is UNCHANGED]
                parts.append(f'"unchanged":[{",".join(missing)}]')
        return Change(self._commit_lsn, self._ns, _short(key), f"{{{','.join(parts)},{more}{self._tail}".encode())

    def _relation(self, body: memoryview, place: int) -> Relation:
        return self._tables[struct.unpack_from(">I", body, place)[0]]

    def _describe(self, body: memoryview) -> None:
        (oid,) = struct.unpack_from(">I", body, 1)
        schema, place = _text(body, 5)
        name, place = _text(body, place)
        is_whole = body[place] == ord("f")
        primary = self._primary_keys.get(f"{schema}.{name}") if is_whole else None
        (count,) = struct.unpack_from(">H", body, place + 1)
        place += 3
        columns = []
        for _ in range(count):
            flags = body[place]
            column, place = _text(body, place + 1)
            type_oid, _ = struct.unpack_from(">Ii", body, place)
            place += 8
            columns.append(RelationColumn(column, type_oid, column in primary if primary else bool(flags & 1)))
        relation = Relation(
            f"{schema}.{name}", tuple(columns), tuple(json.dumps(column.name, ensure_ascii=False) for column in columns)
        )
        before = self._tables.get(oid)
        if before is not None and before != relation:
            old, new = ([column.name for column in version.columns] for version in (before, relation))
            log.warning("source.schema_changed", table=relation.table, columns_before=old, columns=new)
        self._tables[oid] = relation


def lsn_text(lsn: int) -> str:
    """Format a log position as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _moment(microseconds: int) -> str:
    at = _EPOCH + timedelta(microseconds=microseconds + EPOCH_2000_US)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _text(body: memoryview, place: int) -> tuple[str, int]:
    end = place
    while body[end]:
        end += 1
    return str(body[place:end], "utf-8"), end + 1


def _tuple(body: memoryview, place: int) -> tuple[Values, int]:
    """Return the values of a row, and the position after the row."""
    (count,) = struct.unpack_from(">H", body, place)
    place += 2
    values: Values = []
    for _ in range(count):
        kind = body[place]
        place += 1
        if kind == 0x6E:  # n
            values.append(None)
        elif kind == 0x75:  # u
            values.append(UNCHANGED)
        else:
            (size,) = struct.unpack_from(">I", body, place)
            values.append(str(body[place + 4 : place + 4 + size], "utf-8"))
            place += 4 + size
    return values, place


def _object(relation: Relation, values: Values, *, is_key_only: bool = False) -> str:
    """Return the known values as a JSON object."""
    shown = [
        f"{name}:{'null' if value is None else column.as_json(str(value))}"
        for name, column, value in zip(relation.names, relation.columns, values, strict=True)
        if value is not UNCHANGED and (column.is_key or not is_key_only)
    ]
    return f"{{{','.join(shown)}}}"


def _short(key: str) -> bytes:
    """Return the key of the record; a digest, if it is longer than keys may be."""
    data = key.encode()
    return data if len(data) <= SHORT_BYTES_MAX else hashlib.blake2b(data).hexdigest().encode()
