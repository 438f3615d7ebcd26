"""The driver's and the Spark helper's clients of the simulated gateways, one for each gateway.

The one rule, as in `driver/gateway_clients`: one that is away holds up nobody else, and is asked one thing at a time;
what it answers late counts when it is asked next. The leader says who there is. Before it: `simulated_driver` and
`simulated_spark`. After it: `simulated_gateway`, by requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from procession.errors import ProcessionError
from procession.gateway.global_registry import LEADER
from procession.sim.simulated_leader_link import part_of
from procession.sim.simulated_process import Process

Answers = dict[str, tuple[Any, Any]]
"""By the gateway's name: what it was asked, and its answer."""


class Desks:
    def __init__(self, owner: Process) -> None:
        self._owner = owner
        self.names = [LEADER]
        self._asked: set[str] = set()
        self._away: set[str] = set()
        self._found: Answers = {}
        self._done: Callable[[Answers], Any] | None = None

    def meet(self, gateways: Iterable[str]) -> None:
        """The leader has said who there is; if it has not, nothing changes."""
        if there := set(gateways):
            self.names = sorted(there | {LEADER})
            self._found = {name: found for name, found in self._found.items() if name in self.names}

    def ask(self, questions: Mapping[str, Any], done: Callable[[Answers], Any]) -> None:
        """Ask each its question; `done` gets the answers of those that are there, also to what was asked before."""
        self._done = done
        for name, question in questions.items():
            if name not in self._asked and name not in self._found:
                self._asked.add(name)
                answered = partial(self._answered, name, question)
                self._owner.site.network.call(self._owner, part_of(name), question, answered)
        if not self._waits:
            self._owner.later(0.0, self._look)

    @property
    def _waits(self) -> bool:
        return any(name not in self._away for name in self._asked)

    def _answered(self, name: str, question: Any, answer: Any) -> Any:
        if isinstance(answer, ProcessionError):
            raise answer
        self._asked.discard(name)
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
