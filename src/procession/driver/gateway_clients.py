"""The driver's clients of the gateways, one for each gateway of the pipeline.

Invariant: a gateway that does not answer does not delay requests to other gateways. Each gateway has its own thread.
The driver waits for a gateway as long as that gateway answers, and only polls a gateway that does not. The leader
says which gateways there are. Used by the driver and by Spark's helper process; uses `gateway/control_client`. The
leader keeps the list of departed gateways on disk, so the driver polls it and stores nothing: the next driver gets
the same names and notifies the sinks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Generic, TypeVar

from procession.errors import ProcessionError, RoundError
from procession.gateway.control_client import ControlClient
from procession.gateway.members import Member
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation
from procession.tls import ClientTls

PATIENCE_S = 1.0
"""How long one request waits for a gateway that cannot be reached. The caller tries again."""
DEPARTURES_POLL_S = 1.0
"""Polling interval. A gateway leaves without a record in its log, so sinks need no earlier notice."""

Answer = TypeVar("Answer")


class GatewayClient(Generic[Answer]):
    """The client of one gateway, with one request at a time."""

    def __init__(self, at: str | Path, cookie: bytes, identity: str | None, tls: ClientTls | None = None) -> None:
        self.at = at
        self._client = ControlClient(at, cookie, PATIENCE_S, identity, tls)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gateway-client")
        self._pending: Future[Answer] | None = None
        self._is_away = False

    def ask(self, question: Callable[[ControlClient], Answer]) -> None:
        """Send a request, unless the reply to an earlier one is pending."""
        if self._pending is None:
            self._pending = self._thread.submit(question, self._client)

    def patience_s(self) -> float:
        """Return how long to wait for the reply."""
        return 0.0 if self._is_away else 2 * PATIENCE_S

    def await_answer(self, timeout_s: float) -> None:
        if self._pending is not None:
            self._is_away = not wait([self._pending], timeout_s).done

    def answer(self) -> Answer | None:
        """Return the reply, once; None if it is pending or the gateway is unreachable.

        Raises errors that an operator must act on."""
        if self._pending is None or not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        try:
            found = pending.result()
        except RoundError:
            self._is_away = True
            return None
        self._is_away = False
        return found

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class GatewayClients(Generic[Answer]):
    """The client of each gateway, by the gateway's name. There is always a client of the first gateway."""

    def __init__(self, first: str | Path, cookie: bytes, tls: ClientTls | None = None) -> None:
        self._first = first
        self._cookie = cookie
        self._tls = tls
        self._clients: dict[str, GatewayClient[Answer]] = {FIRST_GATEWAY: GatewayClient(first, cookie, None, tls)}

    @property
    def names(self) -> list[str]:
        return sorted(self._clients)

    def meet(self, gateways: Iterable[Member]) -> None:
        """Update the clients from the leader's list of gateways, unless it is empty."""
        members = {member.name: member for member in gateways}
        if not members:
            return
        for name, member in members.items():
            client = self._clients.get(name)
            if name != FIRST_GATEWAY and (client is None or client.at != member.control):
                if client is not None:
                    client.close()
                self._clients[name] = GatewayClient(member.control, self._cookie, member.identity, self._tls)
        for name in [name for name in self._clients if name not in members and name != FIRST_GATEWAY]:
            self._clients.pop(name).close()

    def ask(self, questions: Mapping[str, Callable[[ControlClient], Answer]]) -> dict[str, Answer]:
        """Send each gateway its request. Return the replies that have arrived, also those to earlier requests."""
        clients = {name: self._clients[name] for name in questions if name in self._clients}
        for name, client in clients.items():
            client.ask(questions[name])
        for client in clients.values():
            client.await_answer(client.patience_s())
        answers = {name: client.answer() for name, client in clients.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}


def place_of(member: Member) -> LogLocation:
    return LogLocation(member.directory, member.identity, member.flight, member.machine)


async def watch_departures(
    at: str | Path,
    cookie: bytes,
    tls: ClientTls | None,
    notify: Callable[[tuple[str, ...]], None],
    poll_interval_s: float = DEPARTURES_POLL_S,
) -> None:
    """Poll the leader until cancelled. Pass the names of all departed gateways to `notify` whenever they change."""
    known: tuple[str, ...] = ()
    loop = asyncio.get_running_loop()
    with ControlClient(at, cookie, PATIENCE_S, tls=tls) as client:
        while True:
            try:
                found = await loop.run_in_executor(None, client.departed)
            except ProcessionError:
                found = known  # it is unreachable or refuses the request: the reader of its records reports that
            if found != known:
                notify(found)
                known = found
            await asyncio.sleep(poll_interval_s)
