"""The events and actions of the writer of a replicated volume. Pure.

`sos/quorum` decides. A replica is named by its place in the list of replicas. Replies of a connection that is lost do
not become events.
"""

from __future__ import annotations

from dataclasses import dataclass

from procession.sos.volume_rules import ObjectHead, RefusalCode, VolumeState


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """Claim the volume, with a fence above all that are known."""


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
    """After the promise. All of it is synced."""


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
    """What was read for a copy that lacks it."""

    source: int
    target: int
    number: int
    offset: int
    chunks: tuple[tuple[bytes, int], ...]
    """Data, and the object's checksum after it."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A copy could not read what another one lacks."""

    source: int
    target: int


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
    """Read for a copy that lacks it. The answer is ChunksFound."""

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
    """The copy does not fit, or its disk fails. Disconnect, and try again later."""

    replica: int
    reason: str


@dataclass(frozen=True, slots=True)
class RetryClaim:
    """Another client has claimed this fence. Ask again after a moment."""

    promised: int


@dataclass(frozen=True, slots=True)
class Established:
    """The history up to this writer's own object is on the quorum. It may decide from it, and append."""

    fence: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The first `count` appends are synced by the quorum."""

    count: int


@dataclass(frozen=True, slots=True)
class WriterFenced:
    """A later writer has claimed the volume. This one must stop and change nothing more."""

    promised: int


@dataclass(frozen=True, slots=True)
class ForeignHistory:
    """The history ends with an object of another process. This one must not continue it."""

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
