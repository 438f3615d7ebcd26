"""The leader: the first gateway, which grants streams to the other gateways and to itself. Pure, except for the
members' file.

Invariant: `global_registry` and `members` hold all that the leader knows. This module calls them in turn. Each
connection of a gateway is a *link* with its own number. `control` passes the requests of the other gateways, and
`performer` those of this gateway's own sessions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from procession.errors import ConfigError, RemoteProtocolError, RoundError
from procession.gateway.confirmation import check_held
from procession.gateway.gateway_events import Event, LeaderFound, StreamGranted, StreamRefused, StreamRelinquished
from procession.gateway.global_registry import LEADER, GlobalRegistry, Grant
from procession.gateway.members import Member, Members, MemberStatus, others_than
from procession.gateway.request_parsing import written_clocks
from procession.gateway.state import GatewayState
from procession.merge.event_time import DeclaredOrder
from procession.merge.stream_clocks import StreamClock


class EventTimeReport(NamedTuple):
    """A gateway's report about event time: a description of its order, and the watermarks of streams."""

    order_text: str = ""
    clocks: Mapping[int, StreamClock] = {}


NO_ORDER = EventTimeReport()


class Leadership:
    def __init__(
        self,
        members: Members,
        state: GatewayState,
        handle: Callable[[Event], None],
        declared: DeclaredOrder | None = None,
    ) -> None:
        """`handle` passes an event to the leading gateway. `declared` is its event-time order."""
        self._declared = declared
        self._members = members
        self._state = state
        self._handle = handle
        self._numbers = itertools.count(1)
        self._own_link = 0
        self._links: dict[int, str] = {}
        self._turns: dict[str, tuple[int, int]] = {}
        """The latest link of each gateway, as the gateway counts its links."""
        self._trimmed_at = -1
        """The epoch of the snapshot after which the registry was trimmed last."""
        known = state.registry.committed
        self.registry = GlobalRegistry({LEADER, *self._members.present}, {}, state.clocks, known)
        assert state.claims is not None
        state.retirement.is_granted = self.registry.may_be_held
        state.claims.is_alone = not self._members.left and not set(self._members.present) - {LEADER}

    def begin(self, leader: Member, *, is_confirmed: bool = True) -> None:
        """Add the leader itself to the pipeline. It grants no streams until its log is confirmed, because its directory
        may be an older copy."""
        self._members.join(leader)
        if is_confirmed:
            self.lead()

    def lead(self) -> None:
        """Register the streams that this gateway holds, and start to grant streams. Raises StorageError if another
        gateway has reported one of them, because then this directory is an older copy."""
        assert self._state.claims is not None
        held = self._state.claims.held_beyond(self._state.snapshot.end_sequence)
        check_held(held, self.registry.active, LEADER)
        self._own_link = next(self._numbers)
        self.registry.join(LEADER, self._own_link, held, {})
        self._handle(LeaderFound())

    @property
    def gateways(self) -> dict[str, Member]:
        return self._members.present

    @property
    def names(self) -> frozenset[str]:
        """Names of all gateways that have ever joined."""
        return frozenset([*self._members.present, *self._members.left])

    @property
    def departed(self) -> list[str]:
        """Names of the gateways that have left and not come back, or were abandoned."""
        return self._members.left

    # Requests of this gateway itself, which are answered at once.

    def ask(self, stream_id: int) -> None:
        answer = self.registry.notify(self._own_link, stream_id)
        if isinstance(answer, Grant):
            self._handle(StreamGranted(stream_id, answer.committed, answer.clock))
        else:
            self._handle(StreamRefused(stream_id))

    def relinquish(self, stream_id: int, committed: int | None, clock: StreamClock | None = None) -> None:
        self.registry.relinquish(self._own_link, stream_id, committed, clock)
        self._handle(StreamRelinquished(stream_id))

    # Requests of other gateways

    def join(
        self,
        gateway: Member,
        held: list[int],
        committed: Mapping[int, int],
        committed_end: int,
        turn: tuple[int, int] = (0, 0),
        order: EventTimeReport = NO_ORDER,
        *,
        is_confirmed: bool = True,
    ) -> tuple[int, str]:
        """Connect a gateway. Returns its link and its name. `turn` identifies an outdated request, which the gateway
        sent on an earlier link and this process reads late: it is rejected. Without `is_confirmed`, only the gateway's
        address is used, because its report about streams may come from an older copy of its directory."""
        if turn < self._turns.get(gateway.identity, turn):
            raise RemoteProtocolError("this gateway has begun a later link")
        if not self._own_link and not self._members.knows(gateway.identity):
            # The members' file may be an older copy, too. An unlisted gateway must wait for the right file.
            raise RemoteProtocolError("no driver has confirmed the leader's log yet")
        if not self._members.knows(gateway.identity):
            self._check_unknown(gateway, held, committed, committed_end)
        self._check_order(gateway, order.order_text)
        member = self._members.join(gateway)
        assert self._state.claims is not None
        self._state.claims.is_alone = False
        link = next(self._numbers)
        if is_confirmed:
            self.registry.join(member.name, link, held, committed, order.clocks)
        else:
            self.registry.meet(member.name, link)
        self._links[link] = member.name
        self._turns[gateway.identity] = turn
        return link, member.name

    def notify(self, link: int, stream_id: int) -> dict[str, Any]:
        answer = self.registry.notify(link, stream_id)
        if not isinstance(answer, Grant):
            return {"granted": False, "committed": None}
        clocks = {} if answer.clock is None else {stream_id: answer.clock}
        return {"granted": True, "committed": answer.committed, "clocks": written_clocks(clocks)}

    def given_up(
        self, link: int, stream_id: int, committed: int | None, clock: StreamClock | None = None, name: str = ""
    ) -> dict[str, Any]:
        """Release a stream of a gateway. Keeps the stream's name, because the gateway may leave afterwards."""
        was_held = self.registry.relinquish(link, stream_id, committed, clock)
        if was_held and committed is not None:
            self._state.registry.call(stream_id, name)
        return {"was_held": was_held}

    def _check_unknown(
        self, gateway: Member, held: list[int], committed: Mapping[int, int], committed_end: int
    ) -> None:
        """Raise ConfigError for a gateway that is not a member and whose records cannot be taken."""
        if committed_end:
            # Another pipeline has committed from it: its sequence numbers are not in this pipeline's offsets.
            raise ConfigError(
                f"The directory of the gateway at {gateway.control} was used by another pipeline.",
                next_step="Join a gateway only with a directory of its own, made for this pipeline.",
            )
        # A gateway that holds streams was a member, so this directory is an older copy. Its records were not read yet.
        for stream_id in held:
            if committed.get(stream_id) != self.registry.committed(stream_id):
                raise ConfigError(
                    f"The gateway at {gateway.control} has records of stream {stream_id} that others have sent since.",
                    next_step="Join it with an empty directory; producers send again what is not committed.",
                )

    def _check_order(self, gateway: Member, order: str) -> None:
        declared = self._declared
        expected = "" if declared is None else str(declared)
        if order != expected:
            raise ConfigError(
                f"The gateway at {gateway.control} orders by {order or 'arrival'}, not by {expected or 'arrival'}.",
                next_step="Start it with --event-time-streams and --lateness-s as the first one, or let `procession"
                " gateways join` do it.",
            )
        if declared is not None and declared.idle_timeout_s is not None:
            raise ConfigError(
                "A pipeline with idle_timeout_s takes one gateway: no other can say that a stream is silent.",
                next_step="Omit idle_timeout_s, or remove the other gateways.",
            )

    def beat(self, link: int) -> dict[str, Any]:
        """Answer a heartbeat of a gateway. The reply says whether the gateway should leave, where its producers can
        then go, and up to which epoch the leader has committed positions on disk."""
        name = self._links[link]
        if self.registry.is_superseded(link):
            # All requests on this link are refused, so the gateway must connect again.
            raise RemoteProtocolError("a later link of this gateway has replaced this link")
        if self._trimmed_at != self._state.snapshot.epoch:
            # Once per epoch, because there are many gateways and each sends several heartbeats per second.
            self._trimmed_at = self._state.snapshot.epoch
            self.registry.trim()
        is_leaving = self._members[name].standing is MemberStatus.LEAVING
        others = others_than(name, self._members.present) if is_leaving else []
        return {"is_leaving": is_leaving, "others": others, "epoch": self._state.snapshot.epoch}

    def lost(self, link: int) -> str | None:
        """Handle the end of a link. Returns the name of its gateway."""
        self.registry.lost(link)
        return self._links.pop(link, None)

    # Removing gateways

    def leave(self, name: str) -> None:
        """Ask a gateway to leave, for an operator. The reply to its next heartbeat tells it to leave."""
        if name == LEADER or name not in self._members.present:
            why = "leads, and cannot leave" if name == LEADER else "is not one of this pipeline's"
            there_are = ", ".join(member for member in self._members.present if member != LEADER) or "none"
            raise ConfigError(f"Gateway {name!r} {why}.", next_step=f"Name another gateway: {there_are}.")
        if len(self._members.present) > 1:
            self._members.stand(name, MemberStatus.LEAVING)

    def left(self, link: int, epochs: int) -> bool:
        """Remove a gateway that has released all its streams and knows this number of committed epochs. Returns whether
        it may leave. It may leave only when the leader's snapshot has these epochs, too. Otherwise the last ids of its
        streams would be lost if the leader crashed."""
        name = self._links[link]
        if self.registry.is_superseded(link):
            return False
        kept = self._state.snapshot.clocks
        # The leader must have the progress of these streams on disk, too. The next commit writes it.
        are_kept = all(
            clock.later(kept.get(stream_id)) == kept.get(stream_id) for stream_id, clock in self.registry.clocks.items()
        )
        if self._state.snapshot.epoch + 1 < epochs or self.registry.holders().get(name) or not are_kept:
            return False
        if name in self.registry.unreported:
            return False  # its log is not confirmed, so its streams are unknown
        self.registry.leave(name)
        self._members.stand(name, MemberStatus.LEFT)
        return True

    def abandon(self, name: str, identity: str, epochs: int) -> None:
        """Remove a gateway that is lost for good, for a driver that will never commit records of it any more. Its
        streams may then be opened elsewhere. Raises RoundError unless this gateway has all `epochs` that the driver
        knows as committed on disk: their positions are where the streams continue."""
        if name == LEADER:
            raise ConfigError("The first gateway leads, and cannot be abandoned.")
        if self._state.snapshot.epoch + 1 < epochs:
            raise RoundError("The leader lacks the last commit, so it does not know where streams continue.")
        self.registry.abandon(self._members.abandon(name, identity))

    def status(self) -> list[dict[str, Any]]:
        """Return the gateways, whether they are connected, and how many streams each holds."""
        connected, holders = self.registry.gateways, self.registry.holders()
        return [
            {**member.as_dict(), "is_connected": connected.get(name, False), "streams": holders.get(name, 0)}
            for name, member in self._members.present.items()
        ]


def join_request(
    state: GatewayState, gateway: Member, starts: int, turn: int, order: str = "", *, is_confirmed: bool = True
) -> dict[str, Any]:
    """Return the first message on a new link: the gateway's identity and the streams that it holds."""
    assert state.claims is not None
    return {
        "op": "join",
        "starts": starts,
        "turn": turn,
        "gateway": gateway.as_dict(),
        "held": state.claims.held,
        "positions": {str(stream_id): at for stream_id, at in committed_of(state).items()},
        "committed_end": state.snapshot.end_sequence,
        "order": order,
        "clocks": written_clocks(state.clocks),
    } | ({} if is_confirmed else {"is_confirmed": False})


def committed_of(state: GatewayState) -> dict[int, int]:
    return {stream.stream_id: stream.committed for stream in state.registry if stream.committed is not None}
