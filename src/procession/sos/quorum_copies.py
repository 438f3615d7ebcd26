"""What the writer of a replicated volume knows of its copies, its phases, and the arithmetic of quorums. Pure.

Invariant: copies count by their identities, never by their addresses. `sos/quorum` decides with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from procession.errors import ConfigError
from procession.sos.volume_rules import (
    MEMBERS_MAX,
    OLD_CONFIGS_MAX,
    ObjectHead,
    ObjectState,
    QuorumConfig,
    VolumeState,
    chain,
)

ROLL_BYTES = 64 * 1024 * 1024
"""Size at which the writer of an object continues in a new one."""
ROLL_APPENDS = 100_000
COPY_BYTES = 1024 * 1024
"""Maximum bytes on the way to a copy that lags, before it has written them."""
LAG_BYTES_MAX = 8 * 1024 * 1024
"""Unwritten bytes above which a copy counts as lagging and gets no new appends until it has caught up."""


class QuorumPhase(Enum):
    GATHERING = "gathering"
    """Too few copies have answered."""
    CLAIMING = "claiming"
    WRITING_BACK = "writing back"
    """The history is chosen, and is brought to the quorum."""
    LEADING = "leading"
    FENCED = "fenced"


PHASES: dict[QuorumPhase, frozenset[QuorumPhase]] = {
    QuorumPhase.GATHERING: frozenset({QuorumPhase.CLAIMING, QuorumPhase.FENCED}),
    QuorumPhase.CLAIMING: frozenset({QuorumPhase.GATHERING, QuorumPhase.WRITING_BACK, QuorumPhase.FENCED}),
    QuorumPhase.WRITING_BACK: frozenset(
        {QuorumPhase.GATHERING, QuorumPhase.CLAIMING, QuorumPhase.LEADING, QuorumPhase.FENCED}
    ),
    QuorumPhase.LEADING: frozenset({QuorumPhase.CLAIMING, QuorumPhase.FENCED}),
    QuorumPhase.FENCED: frozenset(),
}
"""Which phase may follow which."""


def check_quorum(count: int, write_quorum: int) -> None:
    """Raise ConfigError for numbers of replicas that cannot be safe."""
    if not 1 <= count <= MEMBERS_MAX:
        raise ConfigError(f"{count} replicas cannot be used.", next_step=f"Name 1 to {MEMBERS_MAX} replicas.")
    if not count < 2 * write_quorum <= 2 * count:
        raise ConfigError(
            f"A write quorum of {write_quorum} of {count} replicas is not safe: it must be more than half of them.",
            next_step=f"Set replica_quorum to a number from {count // 2 + 1} to {count}.",
        )


def claims_needed(config: QuorumConfig) -> int:
    """How many members must promise a fence, so that no earlier writer reaches the write quorum, and no other claimant
    the same fence."""
    count = len(config.members)
    return max(count - config.write_quorum + 1, count // 2 + 1)


def is_claimed(head: ObjectHead, identities: set[bytes]) -> bool:
    """Whether enough members of each set of this head are among the copies that have promised."""
    return all(
        len(identities.intersection(config.members)) >= claims_needed(config)
        for config in (head.config, *head.old_configs)
    )


def is_written(head: ObjectHead, identities: set[bytes]) -> bool:
    """Whether the write quorum has it. While the members change, also enough of the earlier members that a writer which
    still claims from these alone finds it."""
    is_found = all(
        len(identities.intersection(old.members)) > len(old.members) - claims_needed(old) for old in head.old_configs
    )
    return is_found and len(identities.intersection(head.config.members)) >= head.config.write_quorum


@dataclass(slots=True)
class ChainLink:
    """An object of the chosen history."""

    number: int
    head: ObjectHead
    length: int
    checksum: int


@dataclass(slots=True)
class WaitingAppend:
    """An append that the quorum has not synced yet."""

    number: int
    offset: int
    data: bytes
    checksum: int
    is_barrier: bool

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(slots=True)
class CopyView:
    """The writer's view of one copy."""

    is_up: bool = False
    identity: bytes = b""
    promised: int = 0
    mark: int = 0
    objects: dict[int, ObjectState] = field(default_factory=dict)
    holds: int = 0
    """The fence that this connection has claimed for us."""
    sent: int = 0
    """End of what was sent of the current object, including what is on the way."""
    sent_number: int = 0
    is_live: bool = False
    """Whether it gets appends as they are made."""
    is_busy: bool = False
    """Whether a reply of it is outstanding."""
    reads_from: int | None = None
    is_unreadable: bool = False
    """Whether it failed to read what another copy lacks."""

    def described(self, state: VolumeState) -> None:
        self.identity, self.promised, self.mark = state.identity, state.promised, state.mark
        self.objects = dict(state.objects)

    def stop(self) -> None:
        self.is_live = self.is_busy = False
        self.reads_from = None

    @property
    def newest(self) -> int:
        return max(self.objects, default=0)

    def has(self, number: int, end: int) -> bool:
        """Whether the copy has synced an object up to here."""
        known = self.objects.get(number)
        return known is not None and known.synced >= end


def newest_head(copies: Sequence[CopyView]) -> ObjectHead | None:
    """The head of the newest object among these copies."""
    heads: Mapping[int, ObjectHead] = {number: known.head for copy in copies for number, known in copy.objects.items()}
    return heads[max(heads)] if heads else None


def longest_history(copies: Sequence[CopyView], mark: int) -> list[ChainLink]:
    """The history that ends with the longest copy of the newest object among these, the oldest object first. A longer
    copy of an older object does not count: its tail may never have been acknowledged."""
    newest = max(copy.newest for copy in copies)
    if not newest:
        return []
    source = max((copy for copy in copies if newest in copy.objects), key=lambda copy: copy.objects[newest].written)
    links, length, checksum = [], source.objects[newest].written, source.objects[newest].checksum
    for number in chain(source.objects, newest):
        head = source.objects[number].head
        links.append(ChainLink(number, head, length, checksum))
        length, checksum = head.length, head.checksum
    return [link for link in reversed(links) if link.number >= mark]


def wanted_config(copies: Sequence[CopyView], write_quorum: int, current: QuorumConfig) -> QuorumConfig:
    """The copies at the named replicas as members. Unless it is clear which they are, nothing changes."""
    up = [copy.identity for copy in copies if copy.is_up]
    rest = [member for member in current.members if member not in up]
    away = len(copies) - len(up)
    if away and len(rest) != away:
        return current
    members = (*up, *(rest if away else ()))
    if set(members) == set(current.members) and write_quorum == current.write_quorum:
        return current
    return QuorumConfig(members, write_quorum)


def next_head(last: ChainLink, wanted: QuorumConfig, *, is_established: bool) -> ObjectHead:
    """The head of the object that follows `last`, which it seals. Only the writer that has established the last
    object may forget the members before."""
    olds = () if is_established else last.head.old_configs
    config = last.head.config
    if wanted != config and len(olds) < OLD_CONFIGS_MAX:
        config, olds = wanted, (*olds, config)
    sealed = replace(last.head, previous=last.number, length=last.length, checksum=last.checksum)
    return replace(sealed, config=config, old_configs=olds)


def sendable(link: ChainLink, chunks: Iterable[tuple[bytes, int]], offset: int) -> list[tuple[int, bytes, int]]:
    """What is sent at once of what a copy lacks from an offset on: offset, data and checksum of each append. Bytes
    behind the length of the link are dead."""
    chosen: list[tuple[int, bytes, int]] = []
    begin = offset
    for data, checksum in chunks:
        if offset + len(data) > link.length or (chosen and offset - begin >= COPY_BYTES):
            break
        chosen.append((offset, data, checksum))
        offset += len(data)
    return chosen
