"""Progress of a stream: which records were sent, and which of them are acknowledged. Pure.

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
    """The progress of one stream."""

    stream: Stream
    committed: int | None = None
    """The last message id that the gateway has acknowledged. Records up to it are never sent again."""
    last: int | None = None
    """The last message id that was sent in this session or committed before it."""
    is_open: bool = False
    """Whether the gateway has opened the stream in this session and its end was not sent yet."""
    is_ended: bool = False
    """Whether EOS was sent in this session."""
    is_end_committed: bool = False
    """Whether the gateway has confirmed, in this session, that the epoch with the EOS is committed."""
    sent: int = 0
    """Number of records sent, including repetitions."""
    sent_bytes: int = 0
    acknowledged: int = 0
    """Number of committed records of this source, without repetitions."""
    is_named_again: bool = False
    """Whether the source has named the stream again before its end. The stream is then opened again after its end."""
    _pieces: deque[Ids] = field(default_factory=deque)
    """The ids of the sent and unacknowledged records, in pieces. The gateway's credits bound their number."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether EOS was sent and every record before it is committed. The end itself may be uncommitted."""
        is_committed = self.last is None or (self.committed is not None and self.committed >= self.last)
        return self.is_ended and is_committed

    @property
    def is_done(self) -> bool:
        """Whether all records and the end of the stream are committed. The output that the end triggers is then
        committed, too."""
        return self.is_acknowledged and self.is_end_committed

    @property
    def unacknowledged(self) -> int:
        """Number of records that were sent and are not acknowledged."""
        return sum(map(len, self._pieces))

    def begin(self) -> None:
        """Begin a session, in which the unacknowledged records are sent again."""
        self.last, self.is_open, self.is_ended, self.is_named_again = self.committed, False, False, False
        self.is_end_committed = False

    def accept(self) -> None:
        """Note that the gateway has opened the stream and sent its committed position. Later records are sent and
        counted again."""
        self.begin()
        self.is_open = True
        if self._pieces and self.committed is not None:
            # The last session may have ended in the middle of a piece.
            self.acknowledged += int(self._pieces[0].searchsorted(np.uint64(self.committed), "right"))
        self._pieces.clear()

    def end(self) -> None:
        """Note that EOS was sent."""
        self.is_open, self.is_ended = False, True

    def reopen(self) -> None:
        """Prepare another NOTIFY of the ended stream. Its unacknowledged records are still waited for."""
        self.is_ended = self.is_named_again = False

    def send(self, ids: Ids, size_bytes: int) -> None:
        self.sent += len(ids)
        self.sent_bytes += size_bytes
        if self.stream.is_ephemeral:
            return  # ephemeral records are never acknowledged
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
        """Join each two neighbouring pieces. Acknowledged records are then counted later, but still exactly."""
        pieces = list(self._pieces)
        self._pieces = deque(np.concatenate(pieces[first : first + 2]) for first in range(0, len(pieces), 2))


@dataclass(slots=True)
class KnownStreams:
    """The streams that a source has named so far, by their ids."""

    streams: dict[int, StreamProgress] = field(default_factory=dict)
    is_complete: bool = False
    """Whether the source has named all its streams."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether every end was sent and every record is committed."""
        return self.is_complete and all(progress.is_acknowledged for progress in self.streams.values())

    @property
    def is_done(self) -> bool:
        """Whether every record and every end is committed."""
        return self.is_complete and all(progress.is_done for progress in self.streams.values())
