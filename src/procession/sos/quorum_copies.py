"""The knowledge of a replicated volume's writer about its copies, its phases, and the arithmetic of quorums. Pure.

Invariant: copies count by their identities, never by their addresses. `sos/quorum` makes the decisions.
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
"""Size at which the writer of an object continues in a new object."""
ROLL_APPENDS = 100_000
COPY_BYTES = 1024 * 1024
"""Maximum bytes that are on the way to a lagging copy and not written by it."""
LAG_BYTES_MAX = 8 * 1024 * 1024
"""Unwritten bytes above which a copy counts as lagging and gets no new appends until it has caught up."""


class QuorumPhase(Enum):
    GATHERING = "gathering"
    """Too few copies have answered."""
    CLAIMING = "claiming"
    WRITING_BACK = "writing back"
    """The history is chosen, and is being written to the quorum."""
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
"""The phases that may follow each phase."""


def check_quorum(count: int, write_quorum: int) -> None:
    """Raise ConfigError for numbers of replicas that are not safe."""
    if not 1 <= count <= MEMBERS_MAX:
        raise ConfigError(f"{count} replicas cannot be used.", next_step=f"Name 1 to {MEMBERS_MAX} replicas.")
    if not count < 2 * write_quorum <= 2 * count:
        raise ConfigError(
            f"A write quorum of {write_quorum} of {count} replicas is not safe: it must be more than half of them.",
            next_step=f"Set replica_quorum to a number from {count // 2 + 1} to {count}.",
        )


def claims_needed(config: QuorumConfig) -> int:
    """Return how many members must promise a fence. Then no earlier writer reaches the write quorum, and no other
    writer can claim the same fence."""
    count = len(config.members)
    return max(count - config.write_quorum + 1, count // 2 + 1)


def is_claimed(head: ObjectHead, identities: set[bytes]) -> bool:
    """Whether these copies have enough members of each set in this head for a claim."""
    return all(
        len(identities.intersection(config.members)) >= claims_needed(config)
        for config in (head.config, *head.old_configs)
    )


def is_written(head: ObjectHead, identities: set[bytes]) -> bool:
    """Whether the write quorum has the object. While the members change, enough earlier members must have it, too: then
    a writer that claims only from the earlier members finds it."""
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
    """The writer's knowledge of one copy."""

    is_up: bool = False
    identity: bytes = b""
    promised: int = 0
    mark: int = 0
    objects: dict[int, ObjectState] = field(default_factory=dict)
    holds: int = 0
    """The fence that this connection has claimed for this writer."""
    sent: int = 0
    """End of the bytes of the current object that were sent, including bytes on the way."""
    sent_number: int = 0
    is_live: bool = False
    """Whether the copy gets appends as they are made."""
    is_busy: bool = False
    """Whether a reply of the copy is outstanding."""
    reads_from: int | None = None
    is_unreadable: bool = False
    """Whether the copy has failed to read bytes that another copy lacks."""

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
        """Whether the copy has synced an object up to this length."""
        known = self.objects.get(number)
        return known is not None and known.synced >= end


def newest_head(copies: Sequence[CopyView]) -> ObjectHead | None:
    """Return the head of the newest object among these copies."""
    heads: Mapping[int, ObjectHead] = {number: known.head for copy in copies for number, known in copy.objects.items()}
    return heads[max(heads)] if heads else None


def longest_history(copies: Sequence[CopyView], mark: int) -> list[ChainLink]:
    """Return the history, oldest object first, that ends with the longest copy of the newest object among these copies.
    A longer copy of an older object does not count, because its end may never have been acknowledged."""
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
    """Return the copies at the named replicas as members. If it is unclear which copies these are, the members stay the
    same."""
    up = [copy.identity for copy in copies if copy.is_up]
    rest = [member for member in current.members if member not in up]
    away = len(copies) - len(up)
    if away and len(rest) != away:
        return current
    members = (*up, *(rest if away else ()))
    if set(members) == set(current.members) and write_quorum == current.write_quorum:
        return current
    return QuorumConfig(members, write_quorum)


def next_head(last: ChainLink, wanted_config: QuorumConfig, *, is_established: bool) -> ObjectHead:
    """Return the head of the object that follows `last`, which it seals. Only the writer that has established the last
    object may drop the earlier members."""
    olds = () if is_established else last.head.old_configs
    config = last.head.config
    if wanted_config != config and len(olds) < OLD_CONFIGS_MAX:
        config, olds = wanted_config, (*olds, config)
    sealed = replace(last.head, previous=last.number, length=last.length, checksum=last.checksum)
    return replace(sealed, config=config, old_configs=olds)


def sendable(link: ChainLink, chunks: Iterable[tuple[bytes, int]], offset: int) -> list[tuple[int, bytes, int]]:
    """Return the bytes that are sent at once to a copy that lacks them, from an offset on: offset, data and checksum of
    each append. Bytes after the length of the link are dead."""
    chosen: list[tuple[int, bytes, int]] = []
    begin = offset
    for data, checksum in chunks:
        if offset + len(data) > link.length or (chosen and offset - begin >= COPY_BYTES):
            break
        chosen.append((offset, data, checksum))
        offset += len(data)
    return chosen
