"""The feed: the gateway as Spark's helper process and the driver's conductor see it.

The one rule: nothing is offered while the epoch before is not decided for good, or to a driver that was replaced.
Pickles, because the helper process is started by Spark. Before it `gateway/control`, after it `spark/reader`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from procession.commit.checkpoint import Checkpoint
from procession.commit.rounds import Round
from procession.errors import ProcessionError, RecordError, RoundError, StorageError
from procession.gateway.client import ControlClient

PATIENCE_S = 1.0
"""How long one question waits for a gateway that is away. Whoever asks, asks again."""


@dataclass
class GatewayFeed:
    """Offers the next epoch, limited in records and bytes."""

    at: str | Path
    cookie: bytes = field(repr=False)
    checkpoint: Checkpoint
    records_max: int
    bytes_max: int

    def next_end(self, start: int) -> int:
        self.checkpoint.check_fence()
        self.checkpoint.log.sync_newest_commit()
        try:
            client = _client(self.at, self.cookie)
            return client.offer(self.checkpoint.fence, start, self.records_max, self.bytes_max).end
        except RoundError:
            return start  # the gateway is away: no epoch now, and Spark asks again


_clients: dict[str | Path, ControlClient] = {}


def _client(at: str | Path, cookie: bytes) -> ControlClient:
    # One connection for the life of the helper process; the feed itself is pickled anew.
    return _clients.setdefault(at, ControlClient(at, cookie, PATIENCE_S))


class GatewayWord:
    """What the driver tells the gateway. RoundError: it is away, and must be told again."""

    def __init__(self, at: str | Path, cookie: bytes, fence: int) -> None:
        self._client = ControlClient(at, cookie, PATIENCE_S)
        self._lock = threading.Lock()  # a new driver raises its fence while it repeats its predecessor's last word
        self._fence = fence

    def raise_fence(self, checkpoint: Checkpoint) -> None:
        """From now on no earlier driver is heard. A gateway that has less than it had offered is refused."""
        with self._lock:
            found = self._client.fence(self._fence)
        checkpoint.check_gateway(found.identity)
        offered_end = max(checkpoint.log.offsets.values(), default=0)
        if found.next_sequence < offered_end:
            raise StorageError(
                f"the gateway's log ends at record {found.next_sequence}, but {offered_end} were offered to Spark",
                next_step="restore the gateway's directory; its disk does not keep what it was told to sync",
            )

    def with_stream_name(self, error: ProcessionError) -> ProcessionError:
        """The same error, with the name that its stream was given beside the number; people know the name."""
        if not isinstance(error, RecordError):
            return error
        try:
            with self._lock:
                streams = {stream["id"]: stream["name"] for stream in self._client.status()["streams"]}
        except ProcessionError:
            return error
        number = error.stream_id
        sentence = error.sentence.replace(f"stream {number}", f"stream {number} ({streams.get(number, 'no name')})")
        return RecordError(sentence, next_step=error.next_step, **error.fields)

    def acknowledge(self, record: Round) -> None:
        with self._lock:
            self._client.commit(self._fence, record.epoch, record.last, record.positions)
