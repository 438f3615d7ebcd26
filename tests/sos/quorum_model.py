"""Copies, connections and writers of one volume in memory: any order of messages, crashes, lost disks, several writers.

The copies follow the shipped rules of a volume, and the writers are the shipped decision core. The checker knows what
every writer appended and what was acknowledged.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from procession.sos import quorum_events as ev
from procession.sos import volume_rules
from procession.sos.quorum import QuorumWriter
from procession.sos.quorum_copies import QuorumPhase
from procession.sos.volume_rules import ObjectHead, ObjectState, RequestRefused, VolumeState


class Broken(AssertionError):
    """A guarantee of the volume is broken."""


@dataclass
class ModelObject:
    head: ObjectHead
    chunks: list[tuple[bytes, int]] = field(default_factory=list)
    synced: int = 0
    """Number of chunks."""

    def length(self, count: int | None = None) -> int:
        return sum(len(data) for data, _ in self.chunks[:count])

    def count_at(self, offset: int) -> int | None:
        """Return the number of chunks that end at this offset."""
        return next((count for count in range(len(self.chunks) + 1) if self.length(count) == offset), None)

    @property
    def state(self) -> ObjectState:
        checksum = self.chunks[-1][1] if self.chunks else 0
        return ObjectState(self.head, self.length(), self.length(self.synced), checksum)

    def checksum_at(self, length: int) -> int | None:
        count = self.count_at(length)
        return None if count is None else self.chunks[count - 1][1] if count else 0


class ModelCopy:
    """One replica: the rules of a volume, without files."""

    def __init__(self, world: ModelWorld) -> None:
        self._world = world
        self.lies = False
        """Whether the copy reports data as synced that is not."""
        self.wipe()

    def wipe(self) -> None:
        """Lose the machine with its disk, and start an empty one."""
        self.identity = self._world.chance.randbytes(16)
        self.promised, self.token, self.mark = 0, b"", 0
        self.objects: dict[int, ModelObject] = {}

    def cut_power(self) -> None:
        for known in self.objects.values():
            kept = self._world.chance.randrange(known.synced, len(known.chunks) + 1)
            known.chunks = known.chunks[:kept]
            known.synced = min(known.synced, kept)

    @property
    def state(self) -> VolumeState:
        states = {number: known.state for number, known in self.objects.items()}
        sealed = volume_rules.sealed_lengths(states)
        for number, length in sealed.items():
            checksum = self.objects[number].checksum_at(length)
            states[number] = ObjectState(states[number].head, length, length, checksum or 0)
        return VolumeState(self.identity, self.promised, self.token, self.mark, states)

    def sync(self) -> None:
        for known in self.objects.values():
            known.synced = known.synced if self.lies else len(known.chunks)

    def perform(self, action: ev.QuorumAction, token: bytes) -> ev.QuorumEvent | None:
        match action:
            case ev.SendClaim(replica, fence):
                volume_rules.check_claim(self.state, fence, token)
                self.sync()
                self.promised, self.token = fence, token
                return ev.ClaimPromised(replica, self.state)
            case ev.SendCreate(replica, fence, number, head, mark):
                volume_rules.check_holder(self.state, fence, token)
                if volume_rules.check_create(self.state, fence, number, head, mark, self._checksum_at):
                    if 0 < head.previous < mark:
                        self._raise_mark(mark)
                    self.sync()
                    self.objects[number] = ModelObject(head)
                return self._progress(replica, number)
            case ev.SendAppend(replica, fence, number, offset, checksum, data, is_barrier):
                volume_rules.check_holder(self.state, fence, token)
                known = self.objects[number]
                if offset < known.length() and known.checksum_at(offset + len(data)) == checksum:
                    return self._progress(replica, number)
                sealed = volume_rules.sealed_lengths({key: value.state for key, value in self.objects.items()})
                limit = sealed.get(number) if fence in self.objects else None
                volume_rules.check_append(number, known.length(), limit, offset, len(data), len(known.chunks))
                before = known.chunks[-1][1] if known.chunks else 0
                if zlib.crc32(data, before) != checksum:
                    raise volume_rules.refused(volume_rules.RefusalCode.CONFLICT, "checksum")
                known.chunks.append((data, checksum))
                if is_barrier:
                    self.sync()
                return self._progress(replica, number)
            case ev.SendRead(source, target, number, offset):
                known = self.objects[number]
                count = known.count_at(offset)
                assert count is not None, "a read from the middle of an append"
                return ev.ChunksFound(source, target, number, offset, tuple(known.chunks[count : count + 2]))
            case ev.SendRetain(_, fence, mark):
                volume_rules.check_holder(self.state, fence, token)
                volume_rules.check_mark(self.state, mark)
                self._raise_mark(mark)
        return None

    def _raise_mark(self, mark: int) -> None:
        self.mark = max(mark, self.mark)
        self.objects = {number: known for number, known in self.objects.items() if number >= self.mark}

    def _progress(self, replica: int, number: int) -> ev.ObjectProgress:
        state = self.objects[number].state
        synced = state.written if self.lies else state.synced
        return ev.ObjectProgress(replica, number, state.written, synced, state.checksum)

    def _checksum_at(self, number: int, length: int) -> int | None:
        return self.objects[number].checksum_at(length) if number in self.objects else None


class ModelWriter:
    """A writer with its connections. Requests and replies of one connection stay in order."""

    def __init__(self, world: ModelWorld, name: int, **options: int) -> None:
        self.world = world
        self.name = name
        self.token = bytes([name % 256]) * 16
        self.core = QuorumWriter(len(world.copies), world.write_quorum, **options)
        self.requests: list[deque[ev.QuorumAction]] = [deque() for _ in world.copies]
        self.replies: list[deque[ev.QuorumEvent]] = [deque() for _ in world.copies]
        self.is_alive = True
        self.payloads: list[bytes] = []
        self.history: list[bytes] | None = None
        """The volume's state when the writer was established."""

    def connect(self, replica: int) -> None:
        """Connect to a copy. Replies to earlier requests are lost."""
        self.disconnect(replica)
        self.take(ev.ReplicaUp(replica, self.world.copies[replica].state))

    def disconnect(self, replica: int) -> None:
        self.requests[replica].clear()
        self.replies[replica].clear()
        if self.core.copies[replica].is_up:
            self.take(ev.ReplicaDown(replica))

    def append(self, *, is_barrier: bool = True) -> None:
        payload = b"%d.%d;" % (self.name, len(self.payloads))
        self.payloads.append(payload)
        self.take(ev.AppendAsked(payload, is_barrier))

    def take(self, event: ev.QuorumEvent) -> None:
        for action in self.core.handle(event):
            self.world.checker.saw(self, action)
            match action:
                case ev.RetryClaim():
                    self.world.retries.append(self)
                case ev.DropReplica(replica):
                    self.disconnect(replica)
                case ev.SendRead(source):
                    self.requests[source].append(action)
                case ev.SendClaim() | ev.SendCreate() | ev.SendAppend() | ev.SendRetain():
                    self.requests[action.replica].append(action)

    def deliver(self, replica: int) -> bool:
        """Let a copy perform the next request of this connection."""
        if not self.requests[replica] or not self.is_alive:
            return False
        action = self.requests[replica].popleft()
        copy = self.world.copies[replica]
        try:
            reply = copy.perform(action, self.token)
        except RequestRefused as refusal:
            reply = ev.ReplicaRefused(replica, refusal.code, refusal.promised, refusal.sentence)
        except KeyError:
            reply = ev.ReplicaRefused(replica, volume_rules.RefusalCode.MISSING, 0, "no such object")
            if isinstance(action, ev.SendRead):
                reply = ev.ReadFailed(action.source, action.target, action.number)
        if isinstance(action, ev.SendAppend):
            self.world.checker.appended(action)
        if reply is not None:
            self.replies[replica].append(reply)
        return True

    def answer(self, replica: int) -> bool:
        if not self.replies[replica] or not self.is_alive:
            return False
        self.take(self.replies[replica].popleft())
        return True


class Checker:
    """Checks that acknowledged appends are in the history of every writer that is established later with a higher
    fence."""

    def __init__(self, world: ModelWorld) -> None:
        self._world = world
        self.contents: dict[int, list[bytes]] = {}
        """For each object, the chunks that its writer appended, in order."""
        self.acknowledged: dict[bytes, int] = {}
        """Each acknowledged append, with the fence of its writer then."""
        self.established: dict[int, list[bytes]] = {}
        """The history of each established writer, by its fence."""
        self.deleted: set[bytes] = set()
        """The appends below a mark."""

    def appended(self, action: ev.SendAppend) -> None:
        """Check that the bytes at an offset of an object never change, whoever sends them."""
        known = self.contents.setdefault(action.number, [])
        position = sum(map(len, known))
        if action.offset == position:
            known.append(action.data)
        elif action.offset < position:
            count = next(count for count in range(len(known)) if sum(map(len, known[:count])) == action.offset)
            if known[count] != action.data:
                raise Broken(f"object {action.number} has two contents at {action.offset}")

    def saw(self, writer: ModelWriter, action: ev.QuorumAction) -> None:
        match action:
            case ev.Established(fence):
                self._established(writer, fence)
            case ev.SendRetain(_, _, mark):
                self.deleted |= {data for number, known in self.contents.items() if number < mark for data in known}
            case ev.Acknowledged(count):
                for payload in writer.payloads[:count]:
                    if payload not in self.acknowledged:
                        self._acknowledge(payload, writer.core.fence)

    def _established(self, writer: ModelWriter, fence: int) -> None:
        found = self.history(writer.core)
        for payload, before in self.acknowledged.items():
            if before < fence and payload not in found and payload not in self.deleted:
                raise Broken(f"fence {fence} has lost {payload!r}, which fence {before} acknowledged")
        for other, known in self.established.items():
            first, second = (known, found) if other < fence else (found, known)
            first = [data for data in first if data not in self.deleted]
            second = [data for data in second if data not in self.deleted]
            if second[: len(first)] != first:
                raise Broken(f"the histories of fences {other} and {fence} differ: {known} and {found}")
        self.established[fence] = found
        if writer.history is None:
            writer.history = found

    def _acknowledge(self, payload: bytes, fence: int) -> None:
        for other, found in self.established.items():
            if other > fence and payload not in found:
                raise Broken(f"fence {fence} acknowledges {payload!r}, which fence {other} does not have")
        self.acknowledged[payload] = fence

    def history(self, core: QuorumWriter) -> list[bytes]:
        found: list[bytes] = []
        for link in core.chain[:-1]:
            length = 0
            for data in self.contents.get(link.number, []):
                length += len(data)
                if length <= link.length:
                    found.append(data)
        return found


class ModelWorld:
    def __init__(self, copies: int = 3, write_quorum: int = 2, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.write_quorum = write_quorum
        self.checker = Checker(self)
        self.copies = [ModelCopy(self) for _ in range(copies)]
        self.writers: list[ModelWriter] = []
        self.retries: list[ModelWriter] = []

    def start(self, *, connected: Callable[[int], bool] = lambda replica: True, **options: int) -> ModelWriter:
        writer = ModelWriter(self, len(self.writers) + 1, **options)
        self.writers.append(writer)
        for replica in range(len(self.copies)):
            if connected(replica):
                writer.connect(replica)
        return writer

    def lose(self, replica: int) -> None:
        """Lose a machine with its disk."""
        self.copies[replica].wipe()
        for writer in self.writers:
            writer.disconnect(replica)

    def settle(self, *writers: ModelWriter, steps_max: int = 10_000) -> None:
        """Deliver all messages in flight, in turn, until none is left."""
        for _ in range(steps_max):
            moved = [
                step(replica)
                for writer in writers or tuple(self.writers)
                if writer.is_alive
                for replica in range(len(self.copies))
                for step in (writer.deliver, writer.answer)
            ]
            while self.retries:
                self.retries.pop().take(ev.ClaimAsked())
                moved.append(True)
            if not any(moved):
                return
        raise Broken("the writers never come to rest")

    @property
    def leaders(self) -> list[ModelWriter]:
        return [writer for writer in self.writers if writer.core.phase is QuorumPhase.LEADING]
