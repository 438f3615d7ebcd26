"""Stream leases: which streams this gateway holds at the moment, and in which state. Pure.

The one rule: a stream is taken only when the leader has granted it, and given up only when all that was taken of it is
committed; so the records of a stream that moves are in an earlier epoch than those that its next holder takes. This is
the local registry as far as ownership goes; positions and sessions are the registry's. Before it: `state`, which asks
about every NOTIFY. After it: `global_registry`, at the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from enum import Enum
from typing import Protocol

from procession.merge.stream_clocks import Clock
from procession.wire.messages import Notify


class Leader(Protocol):
    """Who is asked for streams. The answers come as events."""

    def ask(self, stream_id: int) -> None: ...

    def relinquish(self, stream_id: int, committed: int | None, clock: Clock | None = None) -> None: ...


class Claim(Enum):
    """What there is between this gateway and a stream. None of these: it is not ours."""

    PENDING_NOTIFY = "pending notify"  # the leader is asked, on behalf of a session
    ACTIVE = "active"  # a session may send on it
    PENDING_CLOSE = "pending close"  # ours, no session sends on it; what came of it is not committed yet
    PENDING_POSITION = "pending position"  # ours since before a restart; the leader is asked how far it is committed
    PENDING_RELINQUISH = "pending relinquish"  # the leader is told that we give it up


class Step(Enum):
    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"
    OPENED = "opened"
    CLOSED = "closed"
    COMMITTED = "committed"
    RELINQUISHED = "relinquished"
    LEADER_LOST = "leader lost"


STEPS: dict[Claim, dict[Step, Claim | None]] = {
    Claim.PENDING_NOTIFY: {
        Step.GRANTED: Claim.ACTIVE,
        Step.REFUSED: None,
        Step.LEADER_LOST: None,
    },
    Claim.ACTIVE: {
        Step.OPENED: Claim.ACTIVE,
        Step.CLOSED: Claim.PENDING_CLOSE,
        Step.LEADER_LOST: Claim.ACTIVE,
    },
    Claim.PENDING_CLOSE: {
        Step.OPENED: Claim.ACTIVE,
        Step.ASKED: Claim.PENDING_POSITION,
        Step.CLOSED: Claim.PENDING_CLOSE,
        Step.COMMITTED: Claim.PENDING_RELINQUISH,
        Step.LEADER_LOST: Claim.PENDING_CLOSE,
    },
    Claim.PENDING_POSITION: {
        Step.GRANTED: Claim.ACTIVE,
        Step.REFUSED: Claim.PENDING_CLOSE,
        Step.LEADER_LOST: Claim.PENDING_CLOSE,
    },
    Claim.PENDING_RELINQUISH: {
        Step.RELINQUISHED: None,
        Step.LEADER_LOST: None,
    },
}
"""What is not here is not heard: an answer that nobody waits for any more changes nothing."""

HELD = (Claim.ACTIVE, Claim.PENDING_CLOSE, Claim.PENDING_POSITION)


class Verdict(Enum):
    OURS = "ours"
    ASK = "ask the leader"
    REFUSED = "refused"


class Claims:
    def __init__(self, held: Iterable[int] = (), until: int = 0, *, is_leading: bool = False) -> None:
        """`held` are the streams with rows that are not committed, as a restarted gateway finds them in its log, which
        ends at `until`."""
        self.is_leading = is_leading
        """Whether the leader is in this process, so that it answers before anything else is heard."""
        self.is_alone = False
        """Whether it is known that no other gateway has ever taken records of this pipeline; the leader knows."""
        self.has_leader = False
        self._claims = dict.fromkeys(held, Claim.PENDING_CLOSE)
        self._until = dict.fromkeys(self._claims, until)
        """For a stream that is closing: all its rows are below this sequence."""
        self._restored = dict(self._until)
        """Of the streams that were found in the log, those that nobody has opened since. Where the last one to hold it
        had come to may be known to the leader only: it told so when it granted the stream, and what this gateway keeps
        is from a later commit, if there was one. Maps to the sequence of the above while the leader is asked."""
        self._asking: dict[int, tuple[int, Notify]] = {}
        """For a stream that the leader is asked for: the session that wants it, and its words."""

    def __len__(self) -> int:
        return len(self._claims)

    def __getitem__(self, stream_id: int) -> Claim | None:
        return self._claims.get(stream_id)

    @property
    def held(self) -> list[int]:
        """What the leader is told when it is found again."""
        return [stream_id for stream_id, claim in self._claims.items() if claim in HELD]

    def holds(self, stream_id: int) -> bool:
        return self._claims.get(stream_id) in HELD

    def has_opened(self, stream_id: int) -> bool:
        """Whether it is held, and a session has opened it since the start: what a restart only finds in the log
        may have been released before."""
        return self.holds(stream_id) and stream_id not in self._restored

    @property
    def asking(self) -> int:
        return len(self._asking)

    def is_wanted(self, stream_id: int) -> bool:
        """Whether a session still waits for the leader to make it ours."""
        return stream_id in self._asking and self._claims[stream_id] is Claim.PENDING_NOTIFY

    def notify(self, session: int, notify: Notify) -> Verdict:
        """A session wants a stream that no other session of ours has."""
        stream_id = notify.stream_id
        match self._claims.get(stream_id):
            case Claim.PENDING_CLOSE if stream_id in self._restored and self.has_leader:
                self._restored[stream_id] = self._until[stream_id]
                self._step(stream_id, Step.ASKED)
                self._asking[stream_id] = session, notify
                return Verdict.ASK
            case Claim.ACTIVE | Claim.PENDING_CLOSE if stream_id not in self._restored:
                self._step(stream_id, Step.OPENED)
                return Verdict.OURS
            case None if self.has_leader:
                self._claims[stream_id] = Claim.PENDING_NOTIFY
                self._asking[stream_id] = session, notify
                return Verdict.ASK
            case _:
                return Verdict.REFUSED

    def answered(self, stream_id: int, is_granted: bool) -> tuple[int, Notify] | None:
        """The leader's answer. Gives who had asked, if anybody still waits for it; if nobody does, a stream that was
        granted goes back, or nobody could ever have it again."""
        asked = self._asking.pop(stream_id, None)
        claim = self._claims.get(stream_id)
        if claim is Claim.PENDING_POSITION and asked is None:
            is_granted = False  # it is ours, and closing, as before
        self._step(stream_id, Step.GRANTED if is_granted else Step.REFUSED)
        if claim is Claim.PENDING_NOTIFY and asked is None:
            self._step(stream_id, Step.CLOSED)
        return asked

    def close(self, stream_ids: Iterable[int], until: int) -> None:
        """No session sends on these any more; what came of them is below this sequence."""
        for stream_id in stream_ids:
            self._step(stream_id, Step.CLOSED, until)

    def place(self, stream_id: int, until: int) -> None:
        """For a stream that is closing: all that came of it is below this sequence, as is known only now."""
        if stream_id in self._until:
            self._until[stream_id] = min(until, self._until[stream_id])

    @property
    def closing(self) -> Set[int]:
        return self._until.keys()

    def leave(self, session: int) -> None:
        """A session is gone. If the leader still grants what it asked for, that is given back."""
        self._asking = {one: asked for one, asked in self._asking.items() if asked[0] != session}

    def settle(self, end_sequence: int) -> list[int]:
        """All below this sequence is committed. Gives the streams that are now given up: the leader is to be told."""
        if not self.has_leader:
            return []
        settled = [stream_id for stream_id, until in self._until.items() if until <= end_sequence]
        for stream_id in settled:
            self._step(stream_id, Step.COMMITTED)
        return settled

    def relinquished(self, stream_id: int) -> None:
        """The leader has heard that it is not ours; or it knew already."""
        self._step(stream_id, Step.RELINQUISHED)

    def lose_leader(self) -> list[tuple[int, Notify]]:
        """Its answers do not come any more. Gives who waits for one; to them the stream is refused."""
        self.has_leader = False
        waiting, self._asking = list(self._asking.values()), {}
        for stream_id in list(self._claims):
            self._step(stream_id, Step.LEADER_LOST)
        return waiting

    def _step(self, stream_id: int, step: Step, until: int = 0) -> None:
        claim = self._claims.get(stream_id)
        if claim is None or step not in STEPS[claim]:
            return
        following = STEPS[claim][step]
        if following is None:
            del self._claims[stream_id]
        else:
            self._claims[stream_id] = following
        if following is not Claim.PENDING_CLOSE:
            self._until.pop(stream_id, None)
        elif step is Step.CLOSED:
            self._until[stream_id] = until
        elif claim is Claim.PENDING_POSITION:
            self._until[stream_id] = self._restored[stream_id]
        if following in (None, Claim.ACTIVE):
            self._restored.pop(stream_id, None)
