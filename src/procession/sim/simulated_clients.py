"""Simulates the clients of the driver and of Spark's helper: one client for each simulated gateway.

Invariant, as in `driver/gateway_clients`: a gateway that does not answer does not delay the others. Each gateway has
one request in flight; a late reply counts for the next request. The leader says which gateways there are. Upstream:
`simulated_driver` and `simulated_spark`. Downstream: the shipped `gateway/control`, by requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from procession.commit.abandoned_gateways import Abandoned
from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations
from procession.commit.round_record import RoundRecord
from procession.driver.abandonment import unreported
from procession.driver.gateway_clients import place_of
from procession.driver.last_commit import LastCommit, epochs_kept, known_members
from procession.errors import ProcessionError, RoundError, StorageError
from procession.gateway.global_registry import LEADER
from procession.gateway.members import Member
from procession.gateway.request_parsing import FORMAT, GarbledRequest
from procession.sim.environment import Environment
from procession.sim.gateway_addresses import control_address, part_of
from procession.sim.set_back import blamed
from procession.sim.simulated_process import SimulatedProcess
from procession.storage.log_ranges import LogOffset

EPOCH_BYTES_MAX = 1 << 30

Request = dict[str, Any]
Answers = dict[str, tuple[Request, Any]]
"""The request and the answer of each gateway, by name."""


def last_commit(checkpoint: Checkpoint, epoch: int) -> LastCommit:
    """Return the commit of this epoch, which gateways must know, as `driver/last_commit` does."""
    if epoch >= 0:
        checkpoint.check_fence()  # a successor knows all commits that were on disk before it took over
    record = checkpoint.rounds.read(epoch) if epoch >= 0 else None
    return LastCommit(checkpoint.fence, record, checkpoint.places.all())


def fence_request(last: LastCommit, name: str, offered: LogOffset) -> Request:
    """Return the request of `gateway/control_client.ControlClient.fence`."""
    return _request("fence", fence=last.fence, offered=offered.as_json(), known=last.known(name)._asdict())


def list_request(fence: int, names: Iterable[str]) -> Request:
    """Return the request for the leader's list of gateways, which must contain these names, as in
    `driver/offsets`."""
    return _request("fence", fence=fence, known=known_members(names)._asdict())


def offer_request(last: LastCommit, name: str, start: LogOffset, records_max: int) -> Request:
    """Return the request of `gateway/control_client.ControlClient.offer`."""
    fields = {"start": start.sequence, "offered": start.as_json(), "known": last.known(name)._asdict()}
    return _request("offer", fence=last.fence, **fields, records_max=records_max, bytes_max=EPOCH_BYTES_MAX)


def commit_request(fence: int, record: RoundRecord, name: str) -> Request:
    """Return the request of `driver/last_commit.send_commit`."""
    positions = {str(stream): message_id for stream, message_id in record.positions.items()}
    end, kept = record.offsets.get(name, 0), epochs_kept(record, name)
    return _request("commit", fence=fence, epoch=record.epoch, end=end, positions=positions, epochs_kept=kept)


def abandon_request(last: LastCommit, lost: Member) -> Request:
    """Return the request of `gateway/control_client.ControlClient.abandon`."""
    fields = {"name": lost.name, "lost_identity": lost.identity}
    return _request("abandon", fence=last.fence, epochs=last.epochs, **fields)


def _request(op: str, **fields: Any) -> Request:
    return {"op": op, "format": FORMAT, **fields}


def members_of(answer: Mapping[str, Any]) -> list[Member]:
    return [Member.from_dict(member) for member in answer.get("gateways", ())]


def keep_places(site: Environment, places: LogLocations, gateways: Iterable[Member]) -> None:
    """Store the places of the gateways that the leader lists, for all later drivers, as `driver/offsets` does."""
    for member in gateways:
        try:
            places.keep(member.name, place_of(member))
        except StorageError as error:
            part = part_of(member.name)
            site.log_event(part, "! refuses: the driver finds that %s", error.sentence)
            site.refused(part)
            raise blamed(error, is_injected_damage=part in site.was_set_back) from error  # the list may be outdated


def report_abandoned(
    clients: SimulatedGatewayClients,
    last: LastCommit,
    listed: Iterable[Member],
    abandoned: Abandoned,
    done: Callable[[], Any],
) -> None:
    """Inform the leader of abandoned gateways, as `driver/abandonment` does. Calls `done` if it has accepted that."""
    requests = [abandon_request(last, lost) for lost in unreported(listed, abandoned)]
    if requests and last.record is not None:
        requests.insert(0, commit_request(last.fence, last.record, LEADER))

    def send(answer: Any = None) -> Any:
        if isinstance(answer, ProcessionError) and not isinstance(answer, RoundError | GarbledRequest):
            raise answer
        if not requests:
            return done()
        clients.send(LEADER, requests.pop(0), answered)
        return None

    def answered(answer: Any) -> Any:
        return None if answer is None or isinstance(answer, RoundError | GarbledRequest) else send(answer)

    send()


class SimulatedGatewayClients:
    def __init__(self, owner: SimulatedProcess, check_fence: Callable[[], None]) -> None:
        self._owner = owner
        self._check_fence = check_fence
        self.names = [LEADER]
        self._identities: dict[str, str] = {}
        """Identities of the gateways without the leader. Only these gateways are asked."""
        self._pending: set[str] = set()
        self._away: set[str] = set()
        self._found: Answers = {}
        self._done: Callable[[Answers], Any] | None = None

    def meet(self, gateways: Iterable[Member]) -> None:
        """Use the leader's list of gateways. An empty list changes nothing."""
        if there := {member.name: member.identity for member in gateways}:
            self.names = sorted({LEADER, *there})
            self._identities = {name: identity for name, identity in there.items() if name != LEADER}
            self._found = {name: found for name, found in self._found.items() if name in self.names}

    def ask(self, questions: Mapping[str, Request], done: Callable[[Answers], Any]) -> None:
        """Send each gateway its request. `done` gets the answers of the reachable gateways, including late
        answers."""
        self._done = done
        for name, question in questions.items():
            if name not in self._pending and name not in self._found:
                self._pending.add(name)
                self._put(name, question)
        if not self._waits:
            self._owner.later(0.0, self._poll)

    def _put(self, name: str, question: Request) -> None:
        whom = {"identity": self._identities[name]} if name in self._identities else {}
        self.send(name, {**question, **whom}, partial(self._answered, name, question))

    def send(self, name: str, request: Request, answered: Callable[[Any], Any]) -> None:
        self._owner.site.network.call(self._owner, control_address(part_of(name)), request, answered)

    @property
    def _waits(self) -> bool:
        return any(name not in self._away for name in self._pending)

    def _answered(self, name: str, question: Any, answer: Any) -> Any:
        if isinstance(answer, RoundError | GarbledRequest):
            answer = None  # as if the gateway were away: the request is sent again
        if isinstance(answer, ProcessionError):
            raise answer
        if answer is not None and "start" in answer and "known" in question and not question["known"]["start"]:
            self._check_fence()  # as in `driver/last_commit`
            self._put(name, {**question, "known": {**question["known"], "start": answer["start"]}})
            return None
        self._pending.discard(name)
        self._away.discard(name)
        if answer is not None:
            self._found[name] = question, answer
        elif len(self.names) > 1:
            self._away.add(name)
        return self._poll()

    def _poll(self) -> Any:
        if self._done is None or self._waits:
            return None
        done, self._done = self._done, None
        found, self._found = self._found, {}
        return done(found)
