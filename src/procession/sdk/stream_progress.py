"""Progress: how far a stream is, and how much of what was sent is acknowledged. Pure.

Invariant: an acknowledged record is never sent again, even in a later session. All other progress starts again with
each session. `sdk/source_session` updates it; `sdk/source_report` shows it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from procession.sdk.source_records import Stream
from procession.wire.messages import NOTHING_COMMITTED

PIECES_MAX = 4096
"""Maximum number of ranges counted per stream. Above it, adjacent ranges are merged."""

Ids = npt.NDArray[np.uint64]


@dataclass(slots=True)
class StreamProgress:
    """One stream's."""

    stream: Stream
    committed: int | None = None
    """What the gateway has acknowledged: never sent again."""
    last: int | None = None
    """What was sent last in this session, or was committed before it."""
    is_open: bool = False
    """The gateway has opened it in this session, and it has not ended."""
    is_ended: bool = False
    """EOS was sent in this session."""
    is_end_committed: bool = False
    """The gateway has confirmed, in this session, that the epoch with the EOS is committed."""
    sent: int = 0
    """Records, those that were sent again too."""
    sent_bytes: int = 0
    acknowledged: int = 0
    """Committed records of this source, each counted once."""
    is_named_again: bool = False
    """The source has named it a second time: it is opened again after its end."""
    _pieces: deque[Ids] = field(default_factory=deque)
    """What is sent and not acknowledged: the ids of each piece. The gateway's credits bound them."""

    @property
    def is_acknowledged(self) -> bool:
        """EOS was sent, and every record before it is committed. The end itself may not be."""
        is_committed = self.last is None or (self.committed is not None and self.committed >= self.last)
        return self.is_ended and is_committed

    @property
    def is_done(self) -> bool:
        """Whether all records and the end of the stream are committed, with the output that the end triggers."""
        return self.is_acknowledged and self.is_end_committed

    @property
    def unacknowledged(self) -> int:
        """Records that were sent and are not acknowledged."""
        return sum(map(len, self._pieces))

    def begin(self) -> None:
        """A new session: what is not acknowledged is sent again."""
        self.last, self.is_open, self.is_ended, self.is_named_again = self.committed, False, False, False
        self.is_end_committed = False

    def accept(self) -> None:
        """The gateway has opened the stream and sent its committed position. Later records are sent and counted
        again."""
        self.begin()
        self.is_open = True
        if self._pieces and self.committed is not None:
            # The last session may have ended in the middle of a piece.
            self.acknowledged += int(self._pieces[0].searchsorted(np.uint64(self.committed), "right"))
        self._pieces.clear()

    def end(self) -> None:
        """EOS was sent."""
        self.is_open, self.is_ended = False, True

    def reopen(self) -> None:
        """It is to be notified again; what was sent before its end is still waited for."""
        self.is_ended = self.is_named_again = False

    def send(self, ids: Ids, size_bytes: int) -> None:
        self.sent += len(ids)
        self.sent_bytes += size_bytes
        if self.stream.is_ephemeral:
            return  # they are never acknowledged again
        self.last = int(ids[-1])
        self._pieces.append(ids)
        if len(self._pieces) > PIECES_MAX:
            self._merge()

    def commit(self, point_of_reference: int) -> None:
        if point_of_reference == NOTHING_COMMITTED:
            return
        self.committed = max(self.committed or 0, point_of_reference)
        while self._pieces and int(self._pieces[0][-1]) <= self.committed:
            self.acknowledged += len(self._pieces.popleft())

    def _merge(self) -> None:
        """Every two neighbours become one: acknowledgements are then counted in larger steps, and as exactly."""
        pieces = list(self._pieces)
        self._pieces = deque(np.concatenate(pieces[first : first + 2]) for first in range(0, len(pieces), 2))


@dataclass(slots=True)
class KnownStreams:
    """The streams that a source has named so far, by their ids."""

    streams: dict[int, StreamProgress] = field(default_factory=dict)
    is_complete: bool = False
    """The source names no more."""

    @property
    def is_acknowledged(self) -> bool:
        """Every end was sent, and every record is committed."""
        return self.is_complete and all(progress.is_acknowledged for progress in self.streams.values())

    @property
    def is_done(self) -> bool:
        """Every record and every end is committed."""
        return self.is_complete and all(progress.is_done for progress in self.streams.values())
