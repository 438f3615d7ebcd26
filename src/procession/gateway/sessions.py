"""A session as the gateway's decisions see it: credits owed, acknowledgements sent, state of the draft protocol. Pure.

Invariant: a session decides nothing. It holds its own data until its connection ends. `gateway/state` uses it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from procession.errors import RemoteProtocolError
from procession.gateway.draft_groups import DraftGroups
from procession.gateway.gateway_limits import Limits
from procession.gateway.registry import Registry
from procession.wire import draft, v3
from procession.wire.draft_messages import AckCounts, AnyFrame, Extension
from procession.wire.messages import Ack, Hello


class SessionPeer(Protocol):
    """A session's socket, as the gateway's decisions use it."""

    def send(self, frame: AnyFrame) -> None: ...

    def close(self, reason: str | None) -> None: ...

    def hold(self, is_held: bool) -> None: ...


def admit(hello: Hello, limits: Limits, *, speaks_draft: bool) -> frozenset[Extension] | None:
    """Return the peer's draft extensions, or None for version 3. Raises RemoteProtocolError unless the peer may
    connect."""
    asked_for = draft.VERSIONS.get(hello.version)
    if asked_for is None and hello.version not in v3.VERSIONS:
        raise RemoteProtocolError(f"unknown version {hello.version[:20]!r}, this is {v3.SOURCE_VERSION}")
    if asked_for is not None and not speaks_draft:
        raise RemoteProtocolError("the draft protocol is available at the first of several gateways only")
    for extension in asked_for or ():
        if extension not in limits.extensions:
            raise RemoteProtocolError(f"the draft's extension {extension.value!r} is not allowed here")
    if bool(hello.cookie) != bool(limits.cookie):
        raise RemoteProtocolError("a cookie is needed here" if limits.cookie else "no cookie is expected here")
    if not hmac.compare_digest(hello.cookie, limits.cookie):
        raise RemoteProtocolError("bad cookie")
    return asked_for


@dataclass(slots=True)
class SessionEntry:
    is_streaming: bool = False
    owed: int = 0
    """Credits that were spent and not granted again."""
    unspent: int = 0
    """The part of `owed` that was spent on frames that stored no record: NOTIFYs and duplicates. A paused session gets
    these credits back, too. Otherwise it could spend all its credits before it has opened its streams."""
    was_acked: bool = False
    """Whether an ACK was sent since the last tick."""
    streams: set[int] = field(default_factory=set)
    """The session's open streams, if streams have their own limits."""
    has_sent: bool = False
    """Whether the session has sent records, if streams have their own limits."""
    groups: DraftGroups | None = None
    """The session's groups in the draft protocol. None with version 3."""
    stutter: int = 0
    """Number of ACKs to withhold, because the session requested this fault."""
    _late: dict[int, int] = field(default_factory=dict)
    """The content of the withheld ACKs."""

    def ack(self, positions: Iterable[tuple[int, int]], registry: Registry, *, grantable: int) -> list[Ack | AckCounts]:
        """Return the ACK with these pairs (stream id, committed id), which grants at least `grantable` credits. Empty
        while ACKs are withheld."""
        self.was_acked = True
        self._late |= dict(positions)
        if self.stutter:
            self.stutter -= 1
            return []
        acknowledged, self._late = self._late, {}
        granted = max(grantable, min(self.owed, self.unspent))
        self.owed -= granted
        self.unspent = max(0, self.unspent - granted)
        if self.groups is not None and self.groups.is_counting:
            return [AckCounts(granted, self.groups.counted(acknowledged, registry))]
        return [Ack(granted, tuple(acknowledged.items()))]
