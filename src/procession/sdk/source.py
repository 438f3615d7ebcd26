"""The source's client: keeps a feed going until every record is acknowledged.

The one rule: a lost session costs nothing but time. The next one begins where the gateway's commits end, so nothing
is lost, and the gateway drops what comes twice. Before it on the walk: the author's Source (sdk/batch). After it:
sdk/feed, one per session.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from procession.address import Address, notice_silence, parse_address
from procession.errors import ConfigError, RemoteProtocolError
from procession.sdk.acklog import AckLog
from procession.sdk.backoff import Backoff
from procession.sdk.batch import Batch, Source, StreamInfo
from procession.sdk.feed import Feed, GreetingRefused, Progress
from procession.sdk.pace import Pace
from procession.wire.connection import Connection
from procession.wire.lifecycle import Role, Side
from procession.wire.messages import Hello, Restart
from procession.wire.v3 import SOURCE_VERSION

__all__ = ["Batch", "Source", "SourceClient", "SourceOptions", "StreamInfo"]

COMPLAINTS_MAX = 5
"""So many sessions in a row that the gateway ended with an error, and nothing committed between."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    program: str
    instance: str
    cookie: bytes = b""
    rate: float | None = None
    """Records a second, all streams together; as fast as they are taken if None."""
    is_stamping: bool = False
    """Each record's event time is when it is sent, in nanoseconds since 1970."""
    acks: Path | None = None
    """Every acknowledgement that is heard is noted down in this file (sdk/acklog)."""


class SourceClient:
    """Sends all that a Source has. `run` returns when everything is committed; cancel it to stop before."""

    def __init__(
        self, source: Source, address: Address, options: SourceOptions, backoff: Backoff | None = None
    ) -> None:
        if options.rate is not None and options.rate <= 0:
            raise ConfigError(f"{options.rate} records a second is no rate.", next_step="Give a number above 0.")
        self._source = source
        self._address = address
        self._options = options
        self._backoff = backoff or Backoff()
        self._acks = AckLog(options.acks) if options.acks else None
        self._progress = {stream.id: Progress(stream) for stream in source.streams()}

    @property
    def committed(self) -> dict[int, int | None]:
        """The last acknowledged message id of each stream."""
        return {stream_id: progress.committed for stream_id, progress in self._progress.items()}

    async def run(self) -> None:
        complaints = 0
        is_waiting = False
        while True:
            before = self.committed
            try:
                restart = await self._session()
            except OSError as error:
                if not is_waiting:
                    log.warning("waiting for the gateway", address=str(self._address), reason=str(error))
                is_waiting = True
            except (GreetingRefused, RemoteProtocolError) as error:
                # Once may be a gateway that is just stopping; again and again is for a person to see.
                complaints = 1 if self.committed != before else complaints + 1
                log.info("the session ended with an error", address=str(self._address), reason=error.sentence)
                if complaints == COMPLAINTS_MAX:
                    raise
            else:
                if restart is None:
                    return
                self._go_to(restart)
            if self.committed != before:
                self._backoff.reset()
                is_waiting = False
            await asyncio.sleep(self._backoff.next_s())

    def _go_to(self, restart: Restart) -> None:
        try:
            self._address = parse_address(restart.address) if restart.address else self._address
        except ConfigError:
            log.warning("the gateway sent us to a place that is none", address=restart.address)

    async def _session(self) -> Restart | None:
        options = self._options
        hello = Hello(SOURCE_VERSION, options.cookie, options.program, options.instance)
        reader, writer = await asyncio.open_connection(*self._address)
        notice_silence(writer.get_extra_info("socket"))
        try:
            feed = Feed(
                self._source,
                self._progress,
                Connection(Side.INITIATOR, Role.SOURCE),
                reader,
                writer,
                pace=Pace(options.rate, time.monotonic()) if options.rate else None,
                is_stamping=options.is_stamping,
                hear=self._acks.heard if self._acks else None,
            )
            return await feed.run(hello)
        finally:
            writer.close()
