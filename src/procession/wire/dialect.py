"""A dialect: the differences between the versions of the protocol.

Invariant: a dialect consists of codecs and tables and makes no decisions. It combines `v3` or `draft` with its
lifecycles. `connection` detects its peer's dialect from the first frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from procession.wire import draft, v3
from procession.wire.draft_adapter import DraftAdapter, VersionAdapter
from procession.wire.draft_lifecycle import DRAFT_CONNECTION, DRAFT_STREAM
from procession.wire.draft_messages import AnyFrame, DraftMessage, DraftMessages, Extension
from procession.wire.lifecycle import TABLES, ConnectionSide, ConnectionState, Role
from procession.wire.messages import Message, Messages
from procession.wire.stream_lifecycle import STREAM, StreamState, StreamStep

Gather = Callable[[tuple[Any, ...]], Messages | DraftMessages]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version of the protocol."""

    name: str
    message_tag: int
    message: type[AnyFrame]
    """The frame type of a MESSAGE."""
    gather: Gather | None
    """Combines several MESSAGE frames into one event. None: they are decoded by columns."""
    decode: Callable[[bytes], AnyFrame]
    encode: Callable[[Any], bytes]
    encode_messages: Callable[..., pa.Buffer]
    connection: Mapping[Role, Mapping[ConnectionState, Mapping[ConnectionSide, Mapping[Any, ConnectionState]]]]
    """The connection lifecycle of each supported role."""
    stream: Mapping[StreamState, Mapping[StreamStep, StreamState]]
    extensions: Callable[[str], frozenset[Extension]]
    """Returns the extensions that HELLO's version requests. Raises ValueError for an unknown version."""
    interpreter: Callable[[], VersionAdapter]
    """Lets a source use this dialect with the frames of version 3."""
    confirms_ends: bool
    """Whether the answer to a NOTIFY says if the end of the stream is committed."""
    own_tags: frozenset[int] = frozenset()
    """The frame tags from which an acceptor detects this dialect."""


def _v3_extensions(version: str) -> frozenset[Extension]:
    if version in draft.VERSIONS:
        raise ValueError(f"version {version!r} has no frames in v3")
    return frozenset()


def _draft_extensions(version: str) -> frozenset[Extension]:
    if version not in draft.VERSIONS:
        raise ValueError(f"unknown version {version[:20]!r}, this is {draft.VERSION}")
    return draft.VERSIONS[version]


V3 = Dialect(
    name="v3",
    message_tag=v3.MESSAGE_TAG,
    message=Message,
    gather=None,
    decode=v3.decode,
    encode=v3.encode,
    encode_messages=v3.encode_messages,
    connection=TABLES,
    stream=STREAM,
    extensions=_v3_extensions,
    interpreter=VersionAdapter,
    confirms_ends=True,
)
DRAFT = Dialect(
    name="draft",
    message_tag=draft.MESSAGE_TAG,
    message=DraftMessage,
    gather=DraftMessages,
    decode=draft.decode,
    encode=draft.encode,
    encode_messages=draft.encode_messages,
    connection={Role.SOURCE: DRAFT_CONNECTION},
    stream=DRAFT_STREAM,
    extensions=_draft_extensions,
    interpreter=DraftAdapter,
    confirms_ends=False,
    own_tags=draft.TAGS,
)
DIALECTS = {dialect.name: dialect for dialect in (V3, DRAFT)}
"""The dialects by their name in options."""


def dialect_of(tag: int, role: Role, default: Dialect) -> Dialect:
    """Return the dialect of a connection whose first frame has this tag."""
    known = (dialect for dialect in DIALECTS.values() if tag in dialect.own_tags and role in dialect.connection)
    return next(known, default)
