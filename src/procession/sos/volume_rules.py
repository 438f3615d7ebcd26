"""The rules of a volume: which requests of a client are allowed. Pure.

A *volume* is one history of bytes, divided into *objects*. An object belongs to one fence, whose number is its name.
Its head names its predecessor and the length at which the predecessor is sealed. So a volume is a chain: each object
seals its predecessor, and bytes beyond the sealed length are dead.

Invariant: bytes are only added at the end of an object. Only the holder of the highest promised fence changes a volume.
An object is created only on a copy whose predecessor is complete up to the sealed length, with the same checksum. So a
copy that has an object has all earlier objects, down to the mark. Only objects below the mark are deleted, and never
the newest of the chain. `sos/volume` performs the allowed requests on files; `sos/quorum` is the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from procession.errors import ProcessionError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of volumes, which are also names of directories."""
IDENTITY_BYTES = 16
TOKEN_BYTES = 16
MEMBERS_MAX = 15
OLD_CONFIGS_MAX = 4
"""Maximum number of sets of members that are replaced at a time."""
OBJECTS_MAX = 4096
"""Maximum number of objects that a volume keeps. A writer that needs more must raise the mark first."""
OBJECT_BYTES_MAX = 256 * 1024 * 1024
OBJECT_CHUNKS_MAX = 1 << 20


class RefusalCode(IntEnum):
    """The reason why a request is refused."""

    FENCED = 1
    """Another claim holds the volume."""
    CONFLICT = 2
    """The request does not match the stored data: an offset that is not the end, another checksum or head."""
    MISSING = 3
    """There is no such volume or object."""
    LIMIT = 4
    STORAGE = 5
    """The disk is full, or a file is damaged."""


class RequestRefused(ProcessionError):
    """A volume's rules forbid the request, which changed nothing. Fields: code, promised."""


def refused(code: RefusalCode, sentence: str, promised: int = 0) -> RequestRefused:
    return RequestRefused(sentence, code=code, promised=promised)


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """The copies of a volume, by their identities, and the number of copies that must sync an append before it is
    acknowledged."""

    members: tuple[bytes, ...]
    write_quorum: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """The head of an object, which its writer sets when it creates the object."""

    previous: int
    """The object before it. 0: there is none."""
    length: int
    """Length at which the previous object is sealed."""
    checksum: int
    """Checksum of the previous object up to that length."""
    config: QuorumConfig
    old_configs: tuple[QuorumConfig, ...] = ()
    """While the set of copies changes: the earlier sets, which must agree, too."""

    @property
    def is_joint(self) -> bool:
        return bool(self.old_configs)


@dataclass(frozen=True, slots=True)
class ObjectState:
    head: ObjectHead
    written: int
    synced: int
    checksum: int
    """Running CRC-32 of all written bytes."""


@dataclass(frozen=True, slots=True)
class VolumeState:
    """One copy of a volume."""

    identity: bytes
    """Random, made with the copy. A copy that was lost and made again has another identity."""
    promised: int = 0
    """The highest fence that was claimed here. Lower fences may not write."""
    token: bytes = b""
    """Distinguishes two clients that claim the same fence."""
    mark: int = 0
    """Objects below the mark are deleted."""
    objects: Mapping[int, ObjectState] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The newest object. 0: there is none."""
        return max(self.objects, default=0)


def chain(objects: Mapping[int, ObjectState], newest: int) -> Iterator[int]:
    """Return the objects of the history that ends with `newest`, newest first, as far as this copy has them."""
    while newest in objects:
        yield newest
        newest = objects[newest].head.previous


def sealed_lengths(objects: Mapping[int, ObjectState]) -> dict[int, int]:
    """Return the length at which each object of the newest history is sealed. The newest object is not sealed."""
    newest = max(objects, default=0)
    heads = [objects[number].head for number in chain(objects, newest)]
    return {head.previous: head.length for head in heads if head.previous in objects}


def check_name(volume: str) -> None:
    if not NAME.fullmatch(volume):
        raise refused(RefusalCode.CONFLICT, f"{volume[:80]!r} cannot name a volume.")


def check_claim(state: VolumeState, fence: int, token: bytes) -> None:
    """Raise RequestRefused unless the client may claim the fence. A fence is claimed by only one client, which may
    repeat the claim."""
    if len(token) != TOKEN_BYTES or fence < 1:
        raise refused(RefusalCode.CONFLICT, "A claim needs a fence above 0 and a token of 16 bytes.")
    if fence < state.promised or (fence == state.promised and token != state.token):
        raise refused(
            RefusalCode.FENCED, f"Fence {fence} is too low: {state.promised} is claimed here.", state.promised
        )


def check_holder(state: VolumeState, fence: int, token: bytes) -> None:
    """Raise RequestRefused unless the client holds the highest fence."""
    if fence != state.promised or token != state.token:
        raise refused(
            RefusalCode.FENCED, f"Fence {fence} does not hold the volume: {state.promised} does.", state.promised
        )


def check_config(config: QuorumConfig) -> None:
    count = len(config.members)
    is_whole = all(len(member) == IDENTITY_BYTES for member in config.members)
    if not is_whole or len(set(config.members)) != count or not 0 < count <= MEMBERS_MAX:
        raise refused(RefusalCode.CONFLICT, f"A volume has 1 to {MEMBERS_MAX} different copies.")
    if not count < 2 * config.write_quorum <= 2 * count:
        raise refused(RefusalCode.CONFLICT, f"{config.write_quorum} of {count} copies is not a majority.")


def check_create(
    state: VolumeState,
    fence: int,
    number: int,
    head: ObjectHead,
    mark: int,
    checksum_at: Callable[[int, int], int | None],
) -> bool:
    """Whether to create the object. False: it exists, with this head. `checksum_at(object, length)` is None if no
    append of the object ends at this length. `mark` is that of the writer: objects below it may be missing."""
    if not 0 < number <= fence or head.previous >= number or head.length < 0:
        raise refused(RefusalCode.CONFLICT, f"Object {number} cannot follow {head.previous} under fence {fence}.")
    if len(head.old_configs) > OLD_CONFIGS_MAX:
        raise refused(RefusalCode.LIMIT, f"A head has at most {OLD_CONFIGS_MAX} earlier sets of copies.")
    for config in (head.config, *head.old_configs):
        check_config(config)
    if (known := state.objects.get(number)) is not None:
        if known.head != head:
            raise refused(RefusalCode.CONFLICT, f"Object {number} is here with another head.")
        return False
    if number < state.mark or not mark <= number:
        raise refused(RefusalCode.CONFLICT, f"Object {number} is below the mark.")
    if len(state.objects) >= OBJECTS_MAX:
        raise refused(RefusalCode.LIMIT, f"The volume has {OBJECTS_MAX} objects. Raise its mark first.")
    if head.previous == 0:
        if any(known.head.previous or known.written for known in state.objects.values()):
            raise refused(RefusalCode.CONFLICT, f"Object {number} would begin a second history.")
    elif head.previous >= max(mark, state.mark) and checksum_at(head.previous, head.length) != head.checksum:
        raise refused(
            RefusalCode.CONFLICT,
            f"Object {number} seals object {head.previous} at {head.length} bytes, which are not here.",
        )
    return True


def check_append(number: int, written: int, sealed: int | None, offset: int, length: int, chunks: int) -> None:
    """Raise RequestRefused unless an append is at the end of the object, and within the length at which it is sealed.
    `chunks` is the number of appends so far."""
    if offset != written:
        raise refused(RefusalCode.CONFLICT, f"Object {number} ends at {written}, not at {offset}.")
    if length < 1:
        raise refused(RefusalCode.CONFLICT, "An append has at least one byte.")
    if sealed is not None and offset + length > sealed:
        raise refused(RefusalCode.CONFLICT, f"Object {number} is sealed at {sealed} bytes.")
    if offset + length > OBJECT_BYTES_MAX or chunks >= OBJECT_CHUNKS_MAX:
        raise refused(RefusalCode.LIMIT, f"Object {number} is full: create the next one.")


def check_mark(state: VolumeState, mark: int) -> None:
    """Raise RequestRefused unless the object at the mark is on the newest history. Then all objects below it are
    sealed, or belong to no history."""
    if mark > state.mark and mark not in chain(state.objects, state.newest):
        raise refused(RefusalCode.CONFLICT, f"The mark {mark} names no object of the newest history.")
