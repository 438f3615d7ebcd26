"""JSON views: stored values and keys of any type as JSON, without the classes of the app.

Invariant: `key_from` reads the view of a key back as exactly this key. The view of another value is only for reading: a
tuple becomes a list. No module is imported because of a name in a file. A value that JSON lacks is an object with one
field whose name begins with `$`, such as `{"$decimal": "1.50"}`. Used by `verify/committed_states`. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, EnumMeta
from typing import Any
from uuid import UUID

import pyarrow as pa

from procession.errors import UsageError
from procession.operators.named_types import NamedTypes
from procession.operators.value_codec import ValueCodec
from procession.planner.keys import KeyCodec


class TypeNames(NamedTypes):
    """Stands for the classes of an app that is not loaded. A value becomes its fields and the name of its class."""

    def member(self, name: str, member: str | None, value: Any) -> Any:
        return {"$enum": [name, value if member is None else member]}

    def build(self, name: str, values: Mapping[str, Any]) -> Any:
        return {"$class": name, **values}

    def made_model(self, name: str, *state: Any) -> Any:
        values, _, extra, _ = state
        return {"$class": name, **values, **(extra or {})}


VALUES, KEYS = ValueCodec(TypeNames()), KeyCodec(TypeNames())


def as_json(value: Any) -> Any:
    """Return the view of a value that `VALUES` or `KEYS` decoded, in plain JSON values."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case list() | tuple():
            return [as_json(part) for part in value]
        case dict():
            if all(isinstance(key, str) for key in value):
                return {key: as_json(part) for key, part in value.items()}
            return {"$dict": [[as_json(key), as_json(part)] for key, part in value.items()]}
        case set() | frozenset():
            return {"$set": sorted((as_json(part) for part in value), key=json.dumps)}
        case bytes() | bytearray():
            return _bytes_view(bytes(value))
        case datetime():
            return {"$datetime": value.isoformat()}
        case date():
            return {"$date": value.isoformat()}
        case time():
            return {"$time": value.isoformat()}
        case timedelta():
            return {"$seconds": str(Decimal(value // timedelta(microseconds=1)).scaleb(-6))}
        case Decimal():
            return {"$decimal": str(value)}
        case UUID():
            return {"$uuid": str(value)}
        case pa.Table() | pa.RecordBatch():
            return {"$table": {"rows": value.num_rows, "columns": value.schema.names}}
    raise AssertionError(f"no stored value is a {type(value).__name__}")


def _bytes_view(data: bytes) -> dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"$hex": data.hex()}
    return {"$bytes": text} if text.isprintable() else {"$hex": data.hex()}


_READ: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": str.encode,
    "$hex": bytes.fromhex,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$decimal": Decimal,
    "$uuid": UUID,
}


def keys_from(text: str) -> list[bytes]:
    """Return the encoded keys that a user may mean by this text: the JSON view of a key, or the text itself, as text
    and as bytes. Raises UsageError for a view of another value."""
    plain = [KEYS.encode(text), KEYS.encode(text.encode())]
    try:
        view = json.loads(text)
    except ValueError:
        return plain
    found = key_from(view)
    return [found] if isinstance(view, str | dict | list) else [found, *plain]


def key_from(view: Any) -> bytes:
    """Return the encoded key with this view. Raises UsageError if it is not the view of a key."""
    enums: list[type[Any]] = []

    def read(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(map(read, part))
        if not isinstance(part, dict):
            return part
        if len(part) != 1:
            raise ValueError("an object must have one field, such as $date")
        ((name, inner),) = part.items()
        if name == "$enum":
            enum_name, value = inner
            made: Any = EnumMeta.__call__(Enum, enum_name, {"member": read(value)})
            enums.append(made)
            return made["member"]
        if name not in _READ:
            raise ValueError(f"there are {', '.join(_READ)} and $enum, but not {name}")
        return _READ[name](inner)

    try:
        key = read(view)
        return KeyCodec(NamedTypes(tuple(enums))).encode(key)
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise UsageError(
            f"{json.dumps(view)} is not a key: {error}",
            next_step="write the key as `procession state scan` prints it",
        ) from error
