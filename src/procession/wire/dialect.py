"""A dialect: all that differs between the versions of the protocol for `connection`, which speaks either.

The one rule: a dialect is bytes and tables, and decides nothing. Before it stand `v3` and `draft` with their
lifecycles; after it `connection`, which learns from the first frame which dialect its peer speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from procession.wire import draft, v3
from procession.wire.draft_adapter import DraftInterpreter, Interpreter
from procession.wire.draft_lifecycle import DRAFT_CONNECTION, DRAFT_STREAM
from procession.wire.draft_messages import AnyFrame, DraftMessage, DraftMessages, Extension
from procession.wire.lifecycle import TABLES, Role, Side, State
from procession.wire.messages import Message, Messages
from procession.wire.stream_lifecycle import STREAM, StreamState, StreamStep

Gather = Callable[[tuple[Any, ...]], Messages | DraftMessages]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version of the protocol."""

    name: str
    message_tag: int
    message: type[AnyFrame]
    """The frame of a MESSAGE."""
    gather: Gather | None
    """One event of several MESSAGE frames; None: they are taken by columns."""
    decode: Callable[[bytes], AnyFrame]
    encode: Callable[[Any], bytes]
    encode_messages: Callable[..., pa.Buffer]
    connection: Mapping[Role, Mapping[State, Mapping[Side, Mapping[Any, State]]]]
    """What may be sent, for each role that there is."""
    stream: Mapping[StreamState, Mapping[StreamStep, StreamState]]
    extensions: Callable[[str], frozenset[Extension]]
    """The extensions that HELLO's version asks for; ValueError if this dialect does not know the version."""
    interpreter: Callable[[], Interpreter]
    """Lets a source use it with the frames of version 3."""
    confirms_ends: bool
    """Whether a NOTIFY tells if the end of a stream is committed."""
    own_tags: frozenset[int] = frozenset()
    """The tags by which an acceptor knows it from the dialect that it was made with."""


def _v3_extensions(version: str) -> frozenset[Extension]:
    if version in draft.VERSIONS:
        raise ValueError(f"version {version!r} is not said in frames of v3")
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
    interpreter=Interpreter,
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
    interpreter=DraftInterpreter,
    confirms_ends=False,
    own_tags=draft.TAGS,
)
DIALECTS = {dialect.name: dialect for dialect in (V3, DRAFT)}
"""By the name that an option has for each."""


def dialect_of(tag: int, role: Role, default: Dialect) -> Dialect:
    """The dialect of a connection whose first frame has this tag."""
    known = (dialect for dialect in DIALECTS.values() if tag in dialect.own_tags and role in dialect.connection)
    return next(known, default)
