"""Confirmation at a simulated gateway: the real `gateway/confirmation`, with the rim of `control` and `performer`.

The one rule, as there: until a driver has named the log in this directory as the one that it was offered records from,
no producer opens a stream. Only in plans in which a directory is set back or lost: elsewhere every gateway has the
directory that it had last, and need not wait. Before it: `simulated_gateway`, which asks. After it: `set_back`, which
hears of a refusal.
"""

from __future__ import annotations

from procession.errors import StorageError
from procession.gateway.confirmation import check_offered
from procession.sim.environment import Site
from procession.sim.set_back import blamed
from procession.sim.simulated_log import InLog
from procession.storage.log_ranges import Offset


class Confirmation:
    def __init__(self, site: Site, part: str, *, has_directory: bool, is_awaited: bool) -> None:
        """`has_directory`: from an earlier life. Unless it `is_awaited`, the directory is taken for the last one."""
        self._site = site
        self._part = part
        self._is_awaited = is_awaited
        self.is_confirmed = not is_awaited or not (has_directory or site.is_claimed())

    def incarnation(self) -> int:
        """Of a log that is begun now."""
        return self._site.chance.randrange(1, 2**64) if self._is_awaited else 0

    def check(self, log: InLog, offered: Offset) -> None:
        if not self._is_awaited:
            return
        try:
            check_offered(log, offered, self._part)
        except StorageError as error:
            self._site.tell(self._part, "! refuses: %s", error.sentence)
            self._site.refused(self._part)
            raise self.excused(error) from error

    def excused(self, error: StorageError) -> StorageError:
        """The same error, not ours if the directory was set back."""
        return blamed(error, is_done_to_us=self._part in self._site.set_back)

    def confirm(self) -> bool:
        """A driver has named this log. Whether that is news."""
        was_confirmed, self.is_confirmed = self.is_confirmed, True
        return not was_confirmed
