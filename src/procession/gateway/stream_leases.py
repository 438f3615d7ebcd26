"""Stream leases: the streams that this gateway holds now, and the state of each. Pure.

Invariant: a stream is held only after the leader has granted it, and released only when all its records here are
committed. So when a stream moves, its earlier records are in an earlier epoch than those that its next holder receives.
This module owns the leases; `registry` owns positions and sessions. `state` calls it for every NOTIFY; at the leader,
`global_registry` answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from enum import Enum
from math import inf
from typing import Protocol

from procession.merge.stream_clocks import StreamClock
from procession.wire.messages import Notify


class Leader(Protocol):
    """The leader, as a gateway sees it. Replies arrive as events."""

    def ask(self, stream_id: int) -> None: ...

    def relinquish(self, stream_id: int, committed: int | None, clock: StreamClock | None = None) -> None: ...


class LeaseState(Enum):
    """The state of a stream's lease. A stream without a lease is not held."""

    PENDING_NOTIFY = "pending notify"  # requested from the leader for a session
    ACTIVE = "active"  # a session may send on it
    PENDING_CLOSE = "pending close"  # held, no session sends on it, and its records are not all committed
    PENDING_POSITION = "pending position"  # held since before a restart; committed position requested
    PENDING_RELINQUISH = "pending relinquish"  # the release is sent to the leader


class LeaseStep(Enum):
    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"
    OPENED = "opened"
    CLOSED = "closed"
    COMMITTED = "committed"
    RELINQUISHED = "relinquished"
    LEADER_LOST = "leader lost"


STEPS: dict[LeaseState, dict[LeaseStep, LeaseState | None]] = {
    LeaseState.PENDING_NOTIFY: {
        LeaseStep.GRANTED: LeaseState.ACTIVE,
        LeaseStep.REFUSED: None,
        LeaseStep.LEADER_LOST: None,
    },
    LeaseState.ACTIVE: {
        LeaseStep.OPENED: LeaseState.ACTIVE,
        LeaseStep.CLOSED: LeaseState.PENDING_CLOSE,
        LeaseStep.LEADER_LOST: LeaseState.ACTIVE,
    },
    LeaseState.PENDING_CLOSE: {
        LeaseStep.OPENED: LeaseState.ACTIVE,
        LeaseStep.ASKED: LeaseState.PENDING_POSITION,
        LeaseStep.CLOSED: LeaseState.PENDING_CLOSE,
        LeaseStep.COMMITTED: LeaseState.PENDING_RELINQUISH,
        LeaseStep.LEADER_LOST: LeaseState.PENDING_CLOSE,
    },
    LeaseState.PENDING_POSITION: {
        LeaseStep.GRANTED: LeaseState.ACTIVE,
        LeaseStep.REFUSED: LeaseState.PENDING_CLOSE,
        LeaseStep.LEADER_LOST: LeaseState.PENDING_CLOSE,
    },
    LeaseState.PENDING_RELINQUISH: {
        LeaseStep.RELINQUISHED: None,
        LeaseStep.LEADER_LOST: None,
    },
}
"""The transitions. An unlisted step is ignored: a reply changes nothing if no request waits for it."""

HELD = (LeaseState.ACTIVE, LeaseState.PENDING_CLOSE, LeaseState.PENDING_POSITION)


class LeaseDecision(Enum):
    OURS = "ours"
    ASK = "ask the leader"
    REFUSED = "refused"


class StreamLeases:
    def __init__(self, held: Iterable[int] = (), until: int = 0, *, is_leading: bool = False) -> None:
        """`held` are the streams with uncommitted rows in the log of a restarted gateway. The log ends at `until`."""
        self.is_leading = is_leading
        """Whether the leader runs in this process. Then its reply precedes all other events."""
        self.is_alone = False
        """Whether no other gateway has ever received records of this pipeline. Only the leader knows."""
        self.has_leader = False
        self._claims = dict.fromkeys(held, LeaseState.PENDING_CLOSE)
        self._until = dict.fromkeys(self._claims, until)
        """For each closing stream: a sequence that is above all its rows."""
        self._restored = dict(self._until)
        """Streams from the log that no session has opened since the restart. Possibly only the leader knows the
        position of the previous holder: it sent the position with the grant, and this gateway stores it only with a
        later commit. The value is the stream's `_until` while the leader's reply is pending."""
        self._asking: dict[int, tuple[int, Notify]] = {}
        """For each stream that is requested from the leader: the session that requests it, and its NOTIFY."""

    def __len__(self) -> int:
        return len(self._claims)

    def __getitem__(self, stream_id: int) -> LeaseState | None:
        return self._claims.get(stream_id)

    @property
    def held(self) -> list[int]:
        """The streams to report to the leader on a new link."""
        return [stream_id for stream_id, claim in self._claims.items() if claim in HELD]

    def held_beyond(self, end_sequence: int) -> list[int]:
        """Return the streams that the leader's own gateway holds when it begins to lead and all rows below this
        sequence are committed. Omits a stream that is only in the log and has no other rows: another gateway may hold
        it by now."""
        settled = {stream_id for stream_id in self._restored if self._until.get(stream_id, inf) <= end_sequence}
        return [stream_id for stream_id in self.held if stream_id not in settled]

    def holds(self, stream_id: int) -> bool:
        return self._claims.get(stream_id) in HELD

    def has_opened(self, stream_id: int) -> bool:
        """Whether the stream is held, and a session has opened it since the start. A stream that is only in the log may
        have been released before the restart."""
        return self.holds(stream_id) and stream_id not in self._restored

    @property
    def asking(self) -> int:
        return len(self._asking)

    def is_wanted(self, stream_id: int) -> bool:
        """Whether a session still waits for the leader to grant the stream."""
        return stream_id in self._asking and self._claims[stream_id] is LeaseState.PENDING_NOTIFY

    def notify(self, session: int, notify: Notify) -> LeaseDecision:
        """Decide whether a session may open a stream that no other session of this gateway has."""
        stream_id = notify.stream_id
        match self._claims.get(stream_id):
            case LeaseState.PENDING_CLOSE if stream_id in self._restored and self.has_leader:
                self._restored[stream_id] = self._until[stream_id]
                self._step(stream_id, LeaseStep.ASKED)
                self._asking[stream_id] = session, notify
                return LeaseDecision.ASK
            case LeaseState.ACTIVE | LeaseState.PENDING_CLOSE if stream_id not in self._restored:
                self._step(stream_id, LeaseStep.OPENED)
                return LeaseDecision.OURS
            case None if self.has_leader:
                self._claims[stream_id] = LeaseState.PENDING_NOTIFY
                self._asking[stream_id] = session, notify
                return LeaseDecision.ASK
            case _:
                return LeaseDecision.REFUSED

    def answered(self, stream_id: int, is_granted: bool) -> tuple[int, Notify] | None:
        """Handle the leader's reply. Returns the session that waits for it, with its NOTIFY. If no session waits, a
        granted stream is released again; otherwise no gateway could ever open it."""
        request = self._asking.pop(stream_id, None)
        claim = self._claims.get(stream_id)
        if claim is LeaseState.PENDING_POSITION and request is None:
            is_granted = False  # the stream stays held and closing
        self._step(stream_id, LeaseStep.GRANTED if is_granted else LeaseStep.REFUSED)
        if claim is LeaseState.PENDING_NOTIFY and request is None:
            self._step(stream_id, LeaseStep.CLOSED)
        return request

    def close(self, stream_ids: Iterable[int], until: int) -> None:
        """Close streams on which no session sends any more. All their rows are below the sequence `until`."""
        for stream_id in stream_ids:
            self._step(stream_id, LeaseStep.CLOSED, until)

    def place(self, stream_id: int, until: int) -> None:
        """Lower the known upper bound of a closing stream's rows."""
        if stream_id in self._until:
            self._until[stream_id] = min(until, self._until[stream_id])

    @property
    def closing(self) -> Set[int]:
        return self._until.keys()

    def leave(self, session: int) -> None:
        """Handle the end of a session. If the leader still grants a stream for it, the stream is released."""
        self._asking = {stream_id: request for stream_id, request in self._asking.items() if request[0] != session}

    def settle(self, end_sequence: int) -> list[int]:
        """Note that all rows below this sequence are committed. Returns the streams to release at the leader."""
        if not self.has_leader:
            return []
        settled = [stream_id for stream_id, until in self._until.items() if until <= end_sequence]
        for stream_id in settled:
            self._step(stream_id, LeaseStep.COMMITTED)
        return settled

    def relinquished(self, stream_id: int) -> None:
        """Handle the leader's confirmation of a release."""
        self._step(stream_id, LeaseStep.RELINQUISHED)

    def lose_leader(self) -> list[tuple[int, Notify]]:
        """Fail all pending requests, because their replies will not arrive. Returns the waiting sessions with their
        NOTIFYs, which are to be refused."""
        self.has_leader = False
        waiting, self._asking = list(self._asking.values()), {}
        for stream_id in list(self._claims):
            self._step(stream_id, LeaseStep.LEADER_LOST)
        return waiting

    def _step(self, stream_id: int, step: LeaseStep, until: int = 0) -> None:
        claim = self._claims.get(stream_id)
        if claim is None or step not in STEPS[claim]:
            return
        following = STEPS[claim][step]
        if following is None:
            del self._claims[stream_id]
        else:
            self._claims[stream_id] = following
        if following is not LeaseState.PENDING_CLOSE:
            self._until.pop(stream_id, None)
        elif step is LeaseStep.CLOSED:
            self._until[stream_id] = until
        elif claim is LeaseState.PENDING_POSITION:
            self._until[stream_id] = self._restored[stream_id]
        if following in (None, LeaseState.ACTIVE):
            self._restored.pop(stream_id, None)
