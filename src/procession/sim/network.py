"""Simulates the network: connections deliver real bytes with delays, in chunks, or not at all.

Invariant: the bytes that arrive on a connection are a prefix of those that were written, in order, in chunks of any
size. When a connection breaks, each end notices at a different time, and the last write may be cut anywhere.
Connections are independent, so an old one can deliver after a new one. Requests to the gateway's control port
(`call`) are values; each request and reply may be lost, delayed or duplicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from procession.sim.environment import Environment
    from procession.sim.simulated_process import SimulatedProcess

SILENCE_S = 0.6
"""Time after which keep-alive reports a dead peer."""
PATIENCE_S = 0.2
"""Timeout of a request."""


class Endpoint:
    """One end of a connection. `tag` is a value of its owner."""

    __slots__ = (
        "_arrival_s",
        "_clock",
        "_flight",
        "_is_closed",
        "_is_cut",
        "_is_in_flight",
        "_latency_s",
        "_random",
        "address",
        "number",
        "other",
        "owner",
        "site",
        "tag",
    )

    def __init__(self, site: Environment, owner: SimulatedProcess, latency_s: float) -> None:
        self.site = site
        self.owner = owner
        self.other: Endpoint
        self.tag: Any = None
        self.address = ""
        """At the listening end: the address to which the other end connected."""
        self.number = site.network.number(self)
        self._clock = site.clock
        self._random = site.chance.random
        self._latency_s = latency_s
        self._flight: list[bytes] = []
        self._is_in_flight = False
        self._arrival_s = 0.0
        self._is_closed = False
        self._is_cut = False
        owner.ends.add(self)

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def write(self, data: bytes) -> None:
        """Send data. Has no effect if the connection is lost, like a socket whose loss was not noticed yet."""
        self.owner.step()
        if self._is_closed or self._is_cut or not data:
            return
        self._flight.append(data)
        if not self._is_in_flight:
            self._is_in_flight = True
            self._clock.after(self._delay_s(), self._arrive)

    def close(self) -> None:
        """Close in order: written data arrives, then the end. Later data from the other end is ignored."""
        if self._is_closed:
            return
        self._leave()
        self.site.clock.after(self._delay_s(), self._finish, True)

    def drop(self, *, is_silent: bool = False) -> None:
        """Handle the death of our process. A kernel still closes the connection; a machine without power does not."""
        if self._is_closed:
            return
        self._leave()
        chance = self.site.chance
        if is_silent or chance.random() < 0.5:
            self._truncate()
        wait_s = SILENCE_S * chance.random() if is_silent else self._delay_s()
        self.site.clock.after(wait_s, self._finish, False)

    def cut(self) -> None:
        """Break the connection. A part of the data in flight arrives, later data does not, and each side notices the
        break at a different time."""
        chance = self.site.chance
        for end in (self, self.other):
            end._truncate()
            end._is_cut = True
            wait_s = SILENCE_S * chance.random() if chance.random() < 0.3 else end.other._delay_s()
            self.site.clock.after(wait_s, end.owner.post, _lose, end, False)

    def mute(self) -> None:
        """Drop all data from now on, without either end noticing."""
        self._is_cut = True

    def half_close(self) -> None:
        """End this direction: the other side reads the end and closes. Data that it wrote before still arrives."""
        if not self._is_closed and not self.other._is_closed:
            self.site.clock.after(self._delay_s(), self._finish, True)

    def _leave(self) -> None:
        self._is_closed = True
        self.owner.ends.discard(self)

    def _truncate(self) -> None:
        data = b"".join(self._flight)
        self._flight = [data[: self.site.chance.randrange(0, len(data) + 1)]] if data else []

    def _delay_s(self) -> float:
        """Return the delay of data that is written now. It never arrives before earlier data."""
        now = self._clock.now
        arrival_s = now + self._latency_s * (0.5 + self._random())
        if arrival_s > self._arrival_s:
            self._arrival_s = arrival_s
        return self._arrival_s - now

    def _arrive(self) -> None:
        self._is_in_flight = False
        flight = self._flight
        if not flight:
            return
        data = flight[0] if len(flight) == 1 else b"".join(flight)
        self._flight = []
        if self._random() < 0.15 and len(data) > 1:
            cut = self.site.chance.randrange(1, len(data))
            self._flight = [data[cut:]]
            data = data[:cut]
            self._is_in_flight = True
            self._clock.after(self._delay_s(), self._arrive)
        self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        other = self.other
        if data and not other._is_closed:
            other.owner.post(_deliver, other, data)

    def _finish(self, is_clean: bool) -> None:
        """End the sending side: data in flight arrives first, then the peer learns of the end."""
        data = b"".join(self._flight)
        self._flight = []
        self._deliver(data)
        other = self.other
        if not other._is_closed:
            other.owner.post(_lose, other, is_clean)


def _deliver(end: Endpoint, data: bytes) -> Any:
    return end.owner.received(end, data) if not end._is_closed else None


def _lose(end: Endpoint, is_clean: bool) -> Any:
    if end._is_closed:
        return None
    end._leave()
    if is_clean:
        end.site.clock.after(end._delay_s(), end._finish, True)
    return end.owner.lost(end, is_clean)


Answer = Callable[[Any], Any]


class Network:
    def __init__(self, site: Environment) -> None:
        self.site = site
        self.listeners: dict[str, SimulatedProcess] = {}
        self.loss = 0.0
        """Probability that a request or reply is lost, and also that it is duplicated."""
        self._ends: list[Endpoint] = []

    def number(self, end: Endpoint) -> int:
        """Return a number for a new end, by which ends are sorted, because the order of sets is not reproducible."""
        self._ends.append(end)
        return len(self._ends)

    def dismantle(self) -> None:
        """Remove all references between endpoints, so that they can be freed."""
        for end in self._ends:
            del end.other, end.owner, end.tag

    def connect(self, owner: SimulatedProcess, address: str, connected: Callable[[Endpoint | None], Any]) -> None:
        """Open a connection. `connected` gets our end, or None if nothing listens."""
        chance = self.site.chance
        # Most connections are fast; some are so slow that later ones overtake them, and a few are much slower.
        drawn = chance.random()
        latency_s = 0.001 if drawn < 0.8 else (0.05 if drawn < 0.97 else 0.6) * chance.random()
        self.site.clock.after(latency_s, self._connect, owner, address, connected, latency_s)

    def _connect(
        self, owner: SimulatedProcess, address: str, connected: Callable[[Endpoint | None], Any], latency_s: float
    ) -> None:
        listener = self.listeners.get(address)
        if not owner.is_alive:
            return
        if listener is None or not listener.is_alive:
            owner.post(connected, None)
            return
        ours, theirs = Endpoint(self.site, owner, latency_s), Endpoint(self.site, listener, latency_s)
        ours.other, theirs.other = theirs, ours
        theirs.address = address
        listener.post(listener.accepted, theirs)
        owner.post(connected, ours)

    def call(self, owner: SimulatedProcess, address: str, request: Any, answered: Answer) -> None:
        """Send a request. `answered` gets the answer, an error as a value, or None if no answer came in time."""
        owner.step()
        site, chance = self.site, self.site.chance
        is_answered = False
        first: SimulatedProcess | None = None

        def once(answer: Any) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                owner.post(answered, answer)

        def reply(answer: Any) -> None:
            if chance.random() >= self.loss:
                site.clock.after(self._latency_s(), once, answer)

        def arrive() -> None:
            nonlocal first
            first = listener = self.listeners.get(address)
            if listener is not None:
                listener.post(listener.on_request, request, reply)  # type: ignore[attr-defined]

        def arrive_again() -> None:
            # A client does not repeat an answered request, but an earlier repetition may be read late.
            if not is_answered or self.listeners.get(address) is first:
                arrive()

        if chance.random() >= self.loss:
            site.clock.after(self._latency_s(), arrive)
        if chance.random() < self.loss:
            site.clock.after(self._latency_s() * 20, arrive_again)
        site.clock.after(PATIENCE_S, once, None)

    def _latency_s(self) -> float:
        chance = self.site.chance
        return 0.001 * chance.random() if chance.random() < 0.9 else 0.1 * chance.random()
