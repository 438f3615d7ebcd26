"""The events and actions of the writer of a replicated volume. Pure.

`sos/quorum` handles the events. A replica is named by its index in the list of replicas. Replies of a lost connection
do not become events.
"""

from __future__ import annotations

from dataclasses import dataclass

from procession.sos.volume_rules import ObjectHead, RefusalCode, VolumeState


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """Claim the volume, with a fence above all known fences."""


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """A replica is connected and has described its copy."""

    replica: int
    state: VolumeState


@dataclass(frozen=True, slots=True)
class ReplicaDown:
    replica: int


@dataclass(frozen=True, slots=True)
class ClaimPromised:
    replica: int
    state: VolumeState
    """The state after the promise. All of it is synced."""


@dataclass(frozen=True, slots=True)
class ObjectProgress:
    """A copy of an object was created or has grown."""

    replica: int
    number: int
    written: int
    synced: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ChunksFound:
    """A copy has read chunks that another copy lacks."""

    source: int
    target: int
    number: int
    offset: int
    chunks: tuple[tuple[bytes, int], ...]
    """Data of each chunk, and the object's checksum after it."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A copy could not read bytes that another copy lacks."""

    source: int
    target: int
    number: int


@dataclass(frozen=True, slots=True)
class ReplicaRefused:
    replica: int
    code: RefusalCode
    promised: int
    reason: str


@dataclass(frozen=True, slots=True)
class AppendAsked:
    data: bytes
    is_barrier: bool


@dataclass(frozen=True, slots=True)
class RollAsked:
    """Continue in a new object."""


@dataclass(frozen=True, slots=True)
class RetainAsked:
    """Delete the objects below this one."""

    mark: int


QuorumEvent = (
    ClaimAsked
    | ReplicaUp
    | ReplicaDown
    | ClaimPromised
    | ObjectProgress
    | ChunksFound
    | ReadFailed
    | ReplicaRefused
    | AppendAsked
    | RollAsked
    | RetainAsked
)


@dataclass(frozen=True, slots=True)
class SendClaim:
    replica: int
    fence: int


@dataclass(frozen=True, slots=True)
class SendCreate:
    replica: int
    fence: int
    number: int
    head: ObjectHead
    mark: int


@dataclass(frozen=True, slots=True)
class SendAppend:
    replica: int
    fence: int
    number: int
    offset: int
    checksum: int
    data: bytes
    is_barrier: bool


@dataclass(frozen=True, slots=True)
class SendRead:
    """Read chunks that another copy lacks. The answer is ChunksFound."""

    source: int
    target: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendRetain:
    replica: int
    fence: int
    mark: int


@dataclass(frozen=True, slots=True)
class DropReplica:
    """Disconnect a copy that does not fit or whose disk fails, and try again later."""

    replica: int
    reason: str


@dataclass(frozen=True, slots=True)
class RetryClaim:
    """Ask for a claim again after a moment, because another client has claimed this fence."""

    promised: int


@dataclass(frozen=True, slots=True)
class Established:
    """The history up to this writer's own object is on the quorum. The writer may now rely on it, and append."""

    fence: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The quorum has synced the first `count` appends."""

    count: int


@dataclass(frozen=True, slots=True)
class WriterFenced:
    """A later writer has claimed the volume. This writer must stop and change nothing more."""

    promised: int


@dataclass(frozen=True, slots=True)
class ForeignHistory:
    """The history ends with an object of another process. This writer must not continue it."""

    number: int


@dataclass(frozen=True, slots=True)
class NoHistory:
    """No copy has an object, and this writer may not begin one."""


QuorumAction = (
    SendClaim
    | SendCreate
    | SendAppend
    | SendRead
    | SendRetain
    | DropReplica
    | RetryClaim
    | Established
    | Acknowledged
    | WriterFenced
    | ForeignHistory
    | NoHistory
)
