"""The global registry: which gateway of a pipeline holds which stream. Owned by the leader. Pure.

Invariant: a stream has at most one holder. The holder keeps the stream until it reports that all the stream's records
are committed: no timeout takes a stream away. So a restarted leader grants nothing before every known gateway has
reported what it holds. `gateway/leader` passes the messages between this registry and the `gateway/stream_leases` of
every gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from procession.errors import ConfigError
from procession.merge.stream_clocks import StreamClock
from procession.storage.log_ranges import FIRST_GATEWAY

LEADER = FIRST_GATEWAY
"""The name of the leader."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The stream is granted to the gateway that asked. `committed` is its last committed id, or None; `clock` is the
    event time that it has reached, in event-time order."""

    stream_id: int
    committed: int | None
    clock: StreamClock | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The stream is not granted, or its holder is unknown so far. The gateway may ask again."""

    stream_id: int


class GlobalRegistry:
    """Grants streams to gateways. `active` maps each stream id to its holder. A *link* is the number of a gateway's
    connection; only messages on a gateway's latest link count."""

    def __init__(
        self,
        gateways: Iterable[str],
        committed: Mapping[int, int] | None = None,
        clocks: Mapping[int, StreamClock] | None = None,
        known: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Start with the knowledge of a new leader: the member gateways, and the committed ids and clocks of its own
        snapshot. `known` returns the committed id of a stream at the leader's own gateway, whether or not it is
        retired."""
        self.active: dict[int, str] = {}
        self._known = known
        self._committed: dict[int, int] = dict(committed or {})
        """Committed ids that gateways have reported. The leader's own gateway may not know them yet."""
        self.clocks: dict[int, StreamClock] = dict(clocks or {})
        """Progress of each stream, as reported by gateways. The last gateway to release it has the latest value."""
        self._links: dict[str, int | None] = dict.fromkeys(gateways)
        self._names: dict[int, str] = {}
        """The gateway of each current link."""
        self._unreported = set(self._links)

    @property
    def unreported(self) -> list[str]:
        """Gateways that have not reported the streams that they hold. While there are any, no stream is granted."""
        return sorted(self._unreported)

    @property
    def gateways(self) -> dict[str, bool]:
        """The gateways of the pipeline, and whether each is connected."""
        return {name: link is not None for name, link in self._links.items()}

    def holders(self) -> dict[str, int]:
        """Number of streams that each gateway holds."""
        counts = dict.fromkeys(self._links, 0)
        for name in self.active.values():
            counts[name] += 1
        return counts

    def join(
        self,
        name: str,
        link: int,
        held: Iterable[int],
        committed: Mapping[int, int],
        clocks: Mapping[int, StreamClock] | None = None,
    ) -> None:
        """Connect or reconnect a gateway, which reports its streams, their committed ids and their clocks. It has
        released every earlier stream that it does not report."""
        held = set(held)
        for stream_id in held:
            if (other := self.active.get(stream_id, name)) != name:
                raise ConfigError(
                    f"Gateways {name!r} and {other!r} both hold stream {stream_id}.",
                    next_step="Join a gateway to the pipeline only with a directory of its own, made for it.",
                )
        for stream_id in [held_id for held_id, holder in self.active.items() if holder == name and held_id not in held]:
            del self.active[stream_id]
        self.active.update(dict.fromkeys(held, name))
        for stream_id, at in committed.items():
            self._commit(stream_id, at)
        for stream_id, clock in (clocks or {}).items():
            self._advance_clock(stream_id, clock)
        self._connect(name, link)
        self._unreported.discard(name)

    def meet(self, name: str, link: int) -> None:
        """Connect a gateway whose log no driver has confirmed. Its holdings do not change: if it has not reported its
        streams, they stay unknown."""
        self._connect(name, link)

    def _connect(self, name: str, link: int) -> None:
        if (before := self._links.get(name)) is not None:
            self._names.pop(before, None)
        self._links[name] = link
        self._names[link] = name

    def lost(self, link: int) -> None:
        """Handle a lost connection. Its gateway keeps its streams, because it may have uncommitted records."""
        if (name := self._names.pop(link, None)) is not None:
            self._links[name] = None

    def is_superseded(self, link: int) -> bool:
        """Whether the link is obsolete: its gateway has a later one, or is not a member."""
        return self._gateway_of(link) is None

    def notify(self, link: int, stream_id: int) -> Grant | Refusal:
        """Answer a gateway that asks for a stream on behalf of a session."""
        name = self._gateway_of(link)
        if name is None or self._unreported or self.active.get(stream_id, name) != name:
            return Refusal(stream_id)
        self.active[stream_id] = name
        return Grant(stream_id, self.committed(stream_id), self.clocks.get(stream_id))

    def may_be_held(self, stream_id: int) -> bool:
        """Whether a gateway holds the stream, or may hold it because not all gateways have reported their streams."""
        return bool(self._unreported) or stream_id in self.active

    def relinquish(self, link: int, stream_id: int, committed: int | None, clock: StreamClock | None = None) -> bool:
        """Release a stream: the gateway has committed all its records up to this id. Returns False if the gateway does
        not hold it."""
        name = self._gateway_of(link)
        if name is None or self.active.get(stream_id) != name:
            return False
        del self.active[stream_id]
        if committed is not None:
            self._commit(stream_id, committed)
        self._advance_clock(stream_id, clock)
        return True

    def leave(self, name: str) -> None:
        """Remove a gateway that holds no streams."""
        if held := self.holders().get(name):
            raise ConfigError(
                f"Gateway {name!r} still holds {held} streams.",
                next_step="Wait until the records that it has received are committed.",
            )
        if (link := self._links.pop(name, None)) is not None:
            self._names.pop(link, None)
        self._unreported.discard(name)

    def abandon(self, name: str) -> None:
        """Remove a gateway that is lost for good. The caller knows that no record of its streams will be committed any
        more, and that the committed ids of these streams are known here."""
        self.active = {stream_id: holder for stream_id, holder in self.active.items() if holder != name}
        if (link := self._links.pop(name, None)) is not None:
            self._names.pop(link, None)
        self._unreported.discard(name)

    def _gateway_of(self, link: int) -> str | None:
        """Return the gateway of a link, unless a later link has replaced it."""
        return self._names.get(link)

    def _advance_clock(self, stream_id: int, clock: StreamClock | None) -> None:
        if clock is not None:
            self.clocks[stream_id] = clock.later(self.clocks.get(stream_id))

    def _commit(self, stream_id: int, at: int) -> None:
        last = self.committed(stream_id)
        if last is None or at > last:
            self._committed[stream_id] = at

    def trim(self) -> None:
        """Drop the committed ids that the leader's own gateway knows by now."""
        self._committed = {
            stream_id: at
            for stream_id, at in self._committed.items()
            if self._known(stream_id) != self.committed(stream_id)
        }

    def committed(self, stream_id: int) -> int | None:
        """Return the highest committed id that any gateway has reported."""
        positions = [
            position for position in (self._committed.get(stream_id), self._known(stream_id)) if position is not None
        ]
        return max(positions, default=None)
