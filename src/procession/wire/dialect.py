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
from procession.wire.draft_lifecycle import DRAFT_CONNECTION, DRAFT_STREAM
from procession.wire.draft_messages import AnyFrame
from procession.wire.lifecycle import TABLES, Role, Side, State
from procession.wire.stream_lifecycle import STREAM, StreamState, StreamStep


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    message_tag: int
    decode: Callable[[bytes], AnyFrame]
    encode: Callable[[Any], bytes]
    encode_messages: Callable[..., pa.Buffer]
    connection: Mapping[Role, Mapping[State, Mapping[Side, Mapping[Any, State]]]]
    """What may be sent, for each role that there is."""
    stream: Mapping[StreamState, Mapping[StreamStep, StreamState]]


V3 = Dialect("v3", v3.MESSAGE_TAG, v3.decode, v3.encode, v3.encode_messages, TABLES, STREAM)
DRAFT = Dialect(
    "draft",
    draft.MESSAGE_TAG,
    draft.decode,
    draft.encode,
    draft.encode_messages,
    {Role.SOURCE: DRAFT_CONNECTION},
    DRAFT_STREAM,
)
DIALECTS = {dialect.name: dialect for dialect in (V3, DRAFT)}
"""By the name that an option has for each."""
