"""A session as the gateway's decisions see it: credits owed, acknowledgements sent, state of the draft protocol. Pure.

The one rule: a session decides nothing. It holds its own data until its connection ends. `gateway/state` uses it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from procession.errors import RemoteProtocolError
from procession.gateway.draft_groups import Groups
from procession.gateway.gateway_options import Limits
from procession.gateway.registry import Registry
from procession.wire import draft, v3
from procession.wire.draft_messages import AckCounts, AnyFrame, Extension
from procession.wire.messages import Ack, Hello


class Peer(Protocol):
    """A session's socket, as the gateway's decisions use it."""

    def send(self, frame: AnyFrame) -> None: ...

    def close(self, reason: str | None) -> None: ...

    def hold(self, is_held: bool) -> None: ...


def admit(hello: Hello, limits: Limits, *, speaks_draft: bool) -> frozenset[Extension] | None:
    """Raises RemoteProtocolError unless the peer may connect. Returns its draft extensions, or None for version 3."""
    asked_for = draft.VERSIONS.get(hello.version)
    if asked_for is None and hello.version not in v3.VERSIONS:
        raise RemoteProtocolError(f"unknown version {hello.version[:20]!r}, this is {v3.SOURCE_VERSION}")
    if asked_for is not None and not speaks_draft:
        raise RemoteProtocolError("the draft is spoken by the first gateway of several only")
    for extension in asked_for or ():
        if extension not in limits.extensions:
            raise RemoteProtocolError(f"the draft's extension {extension.value!r} is not allowed here")
    if bool(hello.cookie) != bool(limits.cookie):
        raise RemoteProtocolError("a cookie is needed here" if limits.cookie else "no cookie is expected here")
    if not hmac.compare_digest(hello.cookie, limits.cookie):
        raise RemoteProtocolError("bad cookie")
    return asked_for


@dataclass(slots=True)
class Session:
    is_streaming: bool = False
    owed: int = 0
    """Credits that were spent and not granted again."""
    unspent: int = 0
    """So many of them went with frames that left nothing behind, a NOTIFY or a duplicate: whoever may not send more
    gets these back all the same, or it could spend all that it has before it has said which streams are its own."""
    was_acked: bool = False
    """Whether an ACK was sent since the last tick."""
    streams: set[int] = field(default_factory=set)
    """Its open streams, if streams have their own limits."""
    has_sent: bool = False
    """Whether it has sent records, if streams have their own limits."""
    groups: Groups | None = None
    """What it has sent in the draft protocol. None with version 3."""
    stutter: int = 0
    """Number of ACKs to withhold, because the session requested this fault."""
    _late: dict[int, int] = field(default_factory=dict)
    """The content of the withheld ACKs."""

    def ack(self, positions: Iterable[tuple[int, int]], registry: Registry, *, payable: int) -> list[Ack | AckCounts]:
        """The ACK that tells these pairs (stream id, committed id) and gives back so much of what is owed; none while
        it stutters."""
        self.was_acked = True
        self._late |= dict(positions)
        if self.stutter:
            self.stutter -= 1
            return []
        told, self._late = self._late, {}
        granted = max(payable, min(self.owed, self.unspent))
        self.owed -= granted
        self.unspent = max(0, self.unspent - granted)
        if self.groups is not None and self.groups.is_counting:
            return [AckCounts(granted, self.groups.counted(told, registry))]
        return [Ack(granted, tuple(told.items()))]
