"""Confirmation at a simulated gateway: the real `gateway/confirmation`, with a model of `control` and `performer`.

Invariant, as there: no producer opens a stream until a driver has confirmed that it read from the log in this
directory, and that no commit is missing in it. Only plans in which a directory is set back or lost use this. In all
others every gateway has its latest directory and need not wait. Upstream: `simulated_gateway`. Downstream: `set_back`,
which acts on a refusal.
"""

from __future__ import annotations

from collections.abc import Container

from procession.errors import RoundError, StorageError
from procession.gateway.confirmation import KnownGateway, check_directory, check_gateways, check_offered
from procession.gateway.gateway_events import EpochCommitted
from procession.gateway.recovery import OpenedGateway
from procession.gateway.snapshot import Snapshot
from procession.sim.control_requests import ConfirmRequest, OfferRequest
from procession.sim.environment import Environment
from procession.sim.set_back import blamed
from procession.storage.log import IngressLog


class Confirmation:
    def __init__(self, site: Environment, part: str, opened: OpenedGateway, *, is_awaited: bool) -> None:
        """Unless it `is_awaited`, the directory is taken for the last one."""
        self._site = site
        self._part = part
        self._is_awaited = is_awaited
        self.is_confirmed = not is_awaited or (opened.found.identity is None and not site.is_claimed())
        self._is_compared = False
        self.identity = opened.identity if is_awaited else ""
        if is_awaited:
            site.identities.setdefault(part, opened.identity)

    def check(
        self, log: IngressLog, request: ConfirmRequest | OfferRequest, snapshot: Snapshot, members: Container[str]
    ) -> None:
        """`members` are the gateways that the leader knows, if this is the leader."""
        if not self._is_awaited:
            return
        try:
            check_offered(log, request.offered, self._part)
            check_directory(self.identity, snapshot.epoch + 1, request.known, self._part)
            check_gateways(members, request.known, self._part)
        except StorageError as error:
            self._site.tell(self._part, "! refuses: %s", error.sentence)
            self._site.refused(self._part)
            raise self.excused(error) from error
        self._is_compared = True

    def check_compared(self, request: object) -> None:
        """Raise RoundError for a commit if no driver has compared the log since the start."""
        if isinstance(request, EpochCommitted) and not self._is_compared and not self.is_confirmed:
            raise RoundError(f"no driver has compared the log of {self._part} since its start")

    def excused(self, error: StorageError) -> StorageError:
        """The same error, marked as injected damage if the directory was set back."""
        return blamed(error, is_injected_damage=self._part in self._site.set_back)

    def is_behind(self, known: KnownGateway, snapshot: Snapshot) -> bool:
        """Whether producers wait until the driver has sent the last commit to this gateway."""
        return not self.is_confirmed and snapshot.epoch + 1 < known.epochs

    def confirm(self, request: ConfirmRequest | OfferRequest, snapshot: Snapshot) -> bool:
        """A driver has named this log. Whether that admits producers."""
        if self.is_confirmed or self.is_behind(request.known, snapshot):
            return False
        self.is_confirmed = True
        self._site.confirmed(self._part, request.offered.sequence)
        return True
