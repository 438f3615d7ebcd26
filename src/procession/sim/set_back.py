"""Injects set-back faults: a gateway's directory is lost or replaced by an older copy, and an operator repairs it.

Invariant: the copy lacks records or committed positions of a decided epoch. So the gateway must refuse the driver, or
receive the missing data, before any producer is admitted. After a refusal the operator follows
`docs/how-to/backup.md`, and restores the gateway's latest directory. `world` triggers it at a fault;
`simulated_gateway` then starts on the replaced directory.
"""

from __future__ import annotations

from collections.abc import Callable

from procession.errors import StorageError
from procession.gateway.gateway_directory import SNAPSHOT
from procession.sim.disk import Directory, File
from procession.sim.durable_gateway import log_end, read_snapshot, set_aside, snapshot_path
from procession.sim.environment import Environment, Machine
from procession.sim.gateway_addresses import name_of

SET_BACK = "set-back"
POLL_INTERVAL_S = 0.05
"""Interval at which the operator checks whether the copy is outdated and the machine is up."""
REPAIR_S = 0.1
"""Time from the refusal until the newest directory is put back."""


class SetBackOperator:
    def __init__(self, site: Environment, machines: dict[str, Machine], kill: Callable[[str], None]) -> None:
        """Prepare the operator. `kill` kills a part if it is alive; the supervisor restarts the part."""
        self._site = site
        self._machines = machines
        self._kill = kill
        self._is_repairing: set[str] = set()

    def begin(self, part: str, kind: str, seconds: float) -> None:
        """Begin a fault. Unless the directory is lost, copy it now. Replace the directory by the copy when the copy
        is outdated."""
        found = self._machines[part].disk.directory(part)
        copy = copied(found) if found is not None and kind == SET_BACK else None
        lacks = (0, -1) if copy is None else (log_end(copy), read_snapshot(_snapshot_of(copy)).epoch)
        self._when(seconds, lambda: self._is_old(part, *lacks), lambda: self._set_back(part, copy))

    def refused(self, part: str) -> None:
        """Handle a gateway that has refused a driver. If a set-back is the cause, undo the fault."""
        if part in self._site.set_back and part not in self._is_repairing:
            self._is_repairing.add(part)
            self._when(REPAIR_S, lambda: self._machines[part].is_up, lambda: self._put_back(part))

    def confirmed(self, part: str, end: int) -> None:
        """Handle a driver that accepts the directory, whose log ends at `end`. If the directory is a copy, the oracle
        checks that it is now complete."""
        if part in self._site.set_back:
            self._site.oracle.set_back(name_of(part), end)
            self._site.log_event(part, "= the copy is taken")
            self._is_repairing.discard(part)
            self._site.set_back.discard(part)
            self._change(part, {set_aside(part): None})

    def _when(self, delay_s: float, is_time: Callable[[], bool], do: Callable[[], None]) -> None:
        def poll() -> None:
            if is_time():
                do()
            else:
                self._site.clock.after(POLL_INTERVAL_S, poll)

        self._site.clock.after(delay_s, poll)

    def _is_old(self, part: str, end: int, epoch: int) -> bool:
        machine, decided = self._machines[part], self._site.oracle.decided
        known = read_snapshot(machine.disk.durable_file(snapshot_path(part)))
        committed = decided[max(decided)].offsets.get(name_of(part), 0) if decided else 0
        is_old = end < max(known.end, committed) or epoch < known.epoch
        return machine.is_up and not self._site.set_back and is_old

    def _set_back(self, part: str, copy: Directory | None) -> None:
        self._kill(part)
        self._site.log_event(part, "! the directory is %s", "lost" if copy is None else "an older copy from here on")
        self._site.set_back.add(part)
        self._site.was_set_back.add(part)
        newest = self._machines[part].disk.directory(part)
        self._change(part, {part: copy, set_aside(part): newest})

    def _put_back(self, part: str) -> None:
        if part not in self._site.set_back:
            return
        self._kill(part)
        self._site.log_event(part, "= the newest directory is put back")
        self._is_repairing.discard(part)
        self._site.set_back.discard(part)
        newest = self._machines[part].disk.directory(set_aside(part))
        self._change(part, {part: newest, set_aside(part): None})

    def _change(self, part: str, names: dict[str, File | Directory | None]) -> None:
        """Change names in the part's parent directory. The effects of a later power cut on the files stay
        possible."""
        disk = self._machines[part].disk
        disk.root.change(names)
        disk.root.sync()
        disk.renamed()


def copied(directory: Directory) -> Directory:
    """Return a copy as an ordinary program makes it: with unsynced writes, which a later power cut may undo."""
    copy = Directory()
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            copy.names[name] = copied(node)
        else:
            copy.names[name] = file = File(node.data)
            file.sync()
    copy.durable = dict(copy.names)
    return copy


def _snapshot_of(directory: Directory) -> bytes | None:
    found = directory.names.get(SNAPSHOT)
    return bytes(found.data) if isinstance(found, File) else None


def blamed(error: StorageError, *, is_injected_damage: bool) -> StorageError:
    """Return a copy of the error. `is_injected_damage` marks an error that the simulation has caused and an operator
    repairs. The copy can be raised from the error. An error that is raised from itself would be an endless chain of
    causes."""
    return StorageError(error.sentence, next_step=error.next_step, is_injected_damage=is_injected_damage)
