"""The driver's and the Spark helper's clients of the simulated gateways, one for each gateway.

Invariant, as in `driver/gateway_clients`: a gateway that does not answer delays no other. Each gateway has one request
in flight; a late reply counts for the next request. The leader says which gateways there are. Upstream:
`simulated_driver` and `simulated_spark`. Downstream: `simulated_gateway`, by requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations
from procession.commit.round_record import RoundRecord
from procession.driver.known_gateways import known_gateway
from procession.errors import ProcessionError, RoundError
from procession.gateway.confirmation import KnownGateway
from procession.gateway.global_registry import LEADER
from procession.sim.environment import Environment
from procession.sim.simulated_leader_link import part_of
from procession.sim.simulated_process import SimulatedProcess
from procession.storage.log_ranges import LogLocation

Answers = dict[str, tuple[Any, Any]]
"""By the gateway's name: what it was asked, and its answer."""


def last_record(site: Environment, checkpoint: Checkpoint) -> RoundRecord | None:
    """The last commit, which gateways must know. None in worlds without set-backs."""
    committed = checkpoint.log.committed if site.identities else -1
    if committed < 0:
        return None
    checkpoint.check_fence()  # a commit that was on disk before a successor took over is known to it
    return checkpoint.rounds.read(committed)


def known(site: Environment, checkpoint: Checkpoint, record: RoundRecord | None, name: str) -> KnownGateway:
    places = checkpoint.places.all() if site.identities else ()
    return known_gateway(record, name, site.identities.get(part_of(name), ""), places)


def keep_places(site: Environment, places: LogLocations, gateways: Iterable[str]) -> None:
    """As `driver/offsets`: a gateway that the leader lists is known to all later drivers."""
    for name in gateways if site.identities else ():
        part = part_of(name)
        places.keep(name, LogLocation(part, site.identities.get(part, "")))


class SimulatedGatewayClients:
    def __init__(self, owner: SimulatedProcess) -> None:
        self._owner = owner
        self.names = [LEADER]
        self._pending: set[str] = set()
        self._away: set[str] = set()
        self._found: Answers = {}
        self._done: Callable[[Answers], Any] | None = None

    def meet(self, gateways: Iterable[str]) -> None:
        """Takes the leader's list of gateways. An empty list changes nothing."""
        if there := set(gateways):
            self.names = sorted(there | {LEADER})
            self._found = {name: found for name, found in self._found.items() if name in self.names}

    def ask(self, questions: Mapping[str, Any], done: Callable[[Answers], Any]) -> None:
        """Ask each its question; `done` gets the answers of those that are there, also to what was asked before."""
        self._done = done
        for name, question in questions.items():
            if name not in self._pending and name not in self._found:
                self._pending.add(name)
                answered = partial(self._answered, name, question)
                self._owner.site.network.call(self._owner, part_of(name), question, answered)
        if not self._waits:
            self._owner.later(0.0, self._look)

    @property
    def _waits(self) -> bool:
        return any(name not in self._away for name in self._pending)

    def _answered(self, name: str, question: Any, answer: Any) -> Any:
        if isinstance(answer, RoundError):
            answer = None  # as if it were away: the request is sent again
        if isinstance(answer, ProcessionError):
            raise answer
        self._pending.discard(name)
        self._away.discard(name)
        if answer is not None:
            self._found[name] = question, answer
        elif len(self.names) > 1:
            self._away.add(name)
        return self._look()

    def _look(self) -> Any:
        if self._done is None or self._waits:
            return None
        done, self._done = self._done, None
        found, self._found = self._found, {}
        return done(found)
