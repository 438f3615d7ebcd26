"""The driver's clients of the gateways, one for each gateway of the pipeline.

The one rule: a gateway that does not answer delays no other. Each gateway has a thread of its own. The driver waits for
a gateway as long as it answers; one that does not answer is only polled. The leader says which gateways there are. Used
by the driver and by Spark's helper process; uses `gateway/control_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Generic, TypeVar

from procession.errors import RoundError
from procession.gateway.control_client import ControlClient
from procession.gateway.members import Member
from procession.storage.log_ranges import FIRST_GATEWAY, Place
from procession.tls import ClientTls

PATIENCE_S = 1.0
"""How long one request waits for a gateway that cannot be reached. The caller tries again."""

Answer = TypeVar("Answer")


class Desk(Generic[Answer]):
    """The client of one gateway, with one request at a time."""

    def __init__(self, at: str | Path, cookie: bytes, identity: str | None, tls: ClientTls | None = None) -> None:
        self.at = at
        self._client = ControlClient(at, cookie, PATIENCE_S, identity, tls)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="desk")
        self._asked: Future[Answer] | None = None
        self._is_away = False

    def ask(self, question: Callable[[ControlClient], Answer]) -> None:
        """Sends a request, unless the reply to an earlier one is pending."""
        if self._asked is None:
            self._asked = self._thread.submit(question, self._client)

    def patience_s(self) -> float:
        """How long to wait for the reply."""
        return 0.0 if self._is_away else 2 * PATIENCE_S

    def await_answer(self, timeout_s: float) -> None:
        if self._asked is not None:
            self._is_away = not wait([self._asked], timeout_s).done

    def answer(self) -> Answer | None:
        """The reply, once. None if there is none yet, or no connection. Raises errors that need an operator."""
        if self._asked is None or not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            found = asked.result()
        except RoundError:
            self._is_away = True
            return None
        self._is_away = False
        return found

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Desks(Generic[Answer]):
    """The clients by the gateways' names. The first gateway is always among them."""

    def __init__(self, first: str | Path, cookie: bytes, tls: ClientTls | None = None) -> None:
        self._first = first
        self._cookie = cookie
        self._tls = tls
        self._desks: dict[str, Desk[Answer]] = {FIRST_GATEWAY: Desk(first, cookie, None, tls)}

    @property
    def names(self) -> list[str]:
        return sorted(self._desks)

    def meet(self, gateways: Iterable[Member]) -> None:
        """Updates the clients from the leader's list of gateways, if there is one."""
        there = {member.name: member for member in gateways}
        if not there:
            return
        for name, member in there.items():
            desk = self._desks.get(name)
            if name != FIRST_GATEWAY and (desk is None or desk.at != member.control):
                if desk is not None:
                    desk.close()
                self._desks[name] = Desk(member.control, self._cookie, member.identity, self._tls)
        for name in [name for name in self._desks if name not in there and name != FIRST_GATEWAY]:
            self._desks.pop(name).close()

    def ask(self, questions: Mapping[str, Callable[[ControlClient], Answer]]) -> dict[str, Answer]:
        """Sends each gateway its request. Returns the replies that have arrived, also those to earlier requests."""
        desks = {name: self._desks[name] for name in questions if name in self._desks}
        for name, desk in desks.items():
            desk.ask(questions[name])
        for desk in desks.values():
            desk.await_answer(desk.patience_s())
        answers = {name: desk.answer() for name, desk in desks.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}


def place_of(member: Member) -> Place:
    return Place(member.directory, member.identity, member.flight, member.machine)
