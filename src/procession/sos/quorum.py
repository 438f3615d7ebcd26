"""The writer of a replicated volume: decides what to send to which copy, and which appends are acknowledged. Pure.

Invariant: an append is acknowledged only when W members have synced it under this writer's fence. A writer appends only
after it is *established*: W members have its object, and with it all earlier objects, as the service enforces. It
continues the longest copy of the newest object among C = max(n − W + 1, majority) members that have promised its fence.
While the members change, both sets of members must agree. A copy whose identity is not a member never counts. `handle`
is the only entry point; a fenced writer sends nothing more. `sos/replicated_volume` performs the actions;
`docs/decisions/0017` has the reasons.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from procession.errors import LocalProtocolError
from procession.sos import quorum_events as ev
from procession.sos.quorum_copies import (
    LAG_BYTES_MAX,
    PHASES,
    ROLL_APPENDS,
    ROLL_BYTES,
    ChainLink,
    CopyView,
    QuorumPhase,
    WaitingAppend,
    check_quorum,
    is_claimed,
    is_written,
    longest_history,
    newest_head,
    next_head,
    sendable,
    wanted_config,
)
from procession.sos.volume_rules import ObjectHead, ObjectState, QuorumConfig, RefusalCode, VolumeState


class QuorumWriter:
    """The writer of a volume, from its first claim until a later writer fences it."""

    def __init__(
        self,
        replicas: int,
        write_quorum: int,
        *,
        may_begin: bool = True,
        own_fences: Collection[int] | None = None,
        roll_bytes: int = ROLL_BYTES,
        roll_appends: int = ROLL_APPENDS,
    ) -> None:
        """`may_begin`: whether to begin a volume if no copy has an object. `own_fences`: the objects with which an
        existing history may end. None: any object."""
        check_quorum(replicas, write_quorum)
        self.write_quorum = write_quorum
        self.phase = QuorumPhase.GATHERING
        self.fence = 0
        self.mark = 0
        self.chain: list[ChainLink] = []
        """The chosen history. While the writer leads, the last link is its own object."""
        self.copies = [CopyView() for _ in range(replicas)]
        self.acknowledged = 0
        """Number of appends that the quorum has synced."""
        self._may_begin = may_begin
        self._own_fences = set(own_fences or ())
        self._may_continue_any = own_fences is None
        self._roll_bytes, self._roll_appends = roll_bytes, roll_appends
        self._waiting: deque[WaitingAppend] = deque()
        self._queued: deque[tuple[bytes, bool]] = deque()
        """Appends that were requested while the writer does not lead, or is about to roll."""
        self._appends = 0
        """Number of appends in the writer's own object."""
        self._wants_roll = False
        self._established = 0
        """The last object that this writer has established."""

    # The entry point

    def handle(self, event: ev.QuorumEvent) -> list[ev.QuorumAction]:
        if self.phase is QuorumPhase.FENCED:
            return []
        actions: list[ev.QuorumAction] = []
        match event:
            case ev.ClaimAsked():
                actions += self._try_claim()
            case ev.ReplicaUp(replica, state):
                actions += self._up(replica, state)
            case ev.ReplicaDown(replica):
                actions += self._down(replica)
            case ev.ClaimPromised(replica, state):
                actions += self._promised(replica, state)
            case ev.ObjectProgress():
                actions += self._progressed(event)
            case ev.ChunksFound():
                actions += self._found(event)
            case ev.ReadFailed(source, target, number):
                self.copies[source].is_unreadable |= number >= self.mark  # or deleted there meanwhile
                self.copies[target].stop()
            case ev.ReplicaRefused():
                actions += self._refused(event)
            case ev.AppendAsked(data, is_barrier):
                self._queued.append((data, is_barrier))
            case ev.RollAsked():
                self._wants_roll = True
            case ev.RetainAsked(mark):
                actions += self._retain(mark)
        return actions + self._go_on()

    @property
    def missing(self) -> list[int]:
        """The replicas that are not connected or not complete."""
        return [replica for replica, copy in enumerate(self.copies) if not copy.is_live]

    @property
    def _own(self) -> ChainLink:
        return self.chain[-1]

    @property
    def _wanted(self) -> QuorumConfig:
        """The members for the next object."""
        return wanted_config(self.copies, self.write_quorum, self._own.head.config)

    def _enter(self, phase: QuorumPhase) -> None:
        if phase not in PHASES[self.phase]:
            raise LocalProtocolError(f"a writer that is {self.phase.value} cannot be {phase.value}")
        self.phase = phase

    # Claiming

    def _up(self, replica: int, state: VolumeState) -> list[ev.QuorumAction]:
        if any(copy.is_up and copy.identity == state.identity for copy in self.copies):
            return [ev.DropReplica(replica, "it is the same service as another replica")]
        copy = self.copies[replica] = CopyView(is_up=True)
        copy.described(state)
        if self.phase is QuorumPhase.GATHERING:
            return self._try_claim()
        if self.phase is QuorumPhase.WRITING_BACK and self._wanted != self._own.head.config:
            # A member was lost for good, and the quorum may need the copy that replaces it.
            return self._claim_again()
        return [ev.SendClaim(replica, self.fence)]

    def _down(self, replica: int) -> list[ev.QuorumAction]:
        copy = self.copies[replica]
        had_promised = copy.holds == self.fence
        copy.is_up, copy.holds = False, 0
        copy.stop()
        for other in self.copies:
            if other.reads_from == replica:
                other.stop()
        if had_promised and self.phase is QuorumPhase.WRITING_BACK and not self._established:
            return self._claim_again()  # only this copy may have the end of the chosen history
        return []

    def _claim_again(self) -> list[ev.QuorumAction]:
        """Claim the next fence. A writer that was never established chooses again which history to continue."""
        if self._established:
            return self._claim(self.fence + 1)
        self._enter(QuorumPhase.GATHERING)
        self.chain = []
        return self._try_claim()

    def _try_claim(self) -> list[ev.QuorumAction]:
        """Claim the volume, if enough copies are connected for the claim to succeed."""
        up = [copy for copy in self.copies if copy.is_up]
        if self.phase is not QuorumPhase.GATHERING:
            return []
        if not self._can_claim(up):
            is_empty = len(up) == len(self.copies) and newest_head(up) is None
            return [ev.NoHistory()] if is_empty else []
        if refusal := self._refusal(up):
            return refusal
        highest = max(max(copy.promised, copy.newest) for copy in up)
        return self._claim(max(highest, self.fence) + 1)

    def _claim(self, fence: int) -> list[ev.QuorumAction]:
        self._enter(QuorumPhase.CLAIMING)
        self.fence = fence
        for copy in self.copies:
            copy.holds = 0
            copy.stop()
        return [ev.SendClaim(replica, fence) for replica, copy in enumerate(self.copies) if copy.is_up]

    def _can_claim(self, copies: Sequence[CopyView]) -> bool:
        head = newest_head(copies)
        if head is None:
            return self._may_begin and len(copies) == len(self.copies)
        return is_claimed(head, {copy.identity for copy in copies})

    def _promised(self, replica: int, state: VolumeState) -> list[ev.QuorumAction]:
        if state.promised != self.fence:
            return []  # an answer to an earlier claim
        copy = self.copies[replica]
        copy.described(state)
        copy.holds = self.fence
        if self.phase is QuorumPhase.CLAIMING:
            holding = [known for known in self.copies if known.holds == self.fence]
            if self._can_claim(holding):
                return self._refusal(holding) or self._choose(holding)
        return []

    def _refusal(self, copies: Sequence[CopyView]) -> list[ev.QuorumAction]:
        """Return the actions if the history belongs to another process."""
        newest = max(copy.newest for copy in copies)
        if self._may_continue_any or not newest or newest in self._own_fences:
            return []
        self._enter(QuorumPhase.FENCED)
        return [ev.ForeignHistory(newest)]

    def _choose(self, holding: Sequence[CopyView]) -> list[ev.QuorumAction]:
        """Choose the history to continue, and the head of the writer's own object."""
        if not self.chain:
            self.mark = max(copy.mark for copy in holding)
            self.chain = longest_history(holding, self.mark)
        # Otherwise the history was chosen under the previous fence, and no other writer can have added to it since.
        if not self.chain:
            config = QuorumConfig(tuple(copy.identity for copy in self.copies), self.write_quorum)
            head = ObjectHead(0, 0, 0, config)
        else:
            last = self._own
            head = next_head(last, self._wanted, is_established=self._established == last.number)
        self.chain.append(ChainLink(self.fence, head, 0, 0))
        self._own_fences |= {self.fence}  # only now, because other writers may have claimed the same number and won
        self._appends = 0
        self._enter(QuorumPhase.WRITING_BACK)
        return []

    def _refused(self, event: ev.ReplicaRefused) -> list[ev.QuorumAction]:
        copy = self.copies[event.replica]
        if event.code is not RefusalCode.FENCED:
            return [ev.DropReplica(event.replica, event.reason), *self._down(event.replica)]
        copy.promised = max(copy.promised, event.promised)
        copy.holds = 0
        copy.stop()
        if event.promised < self.fence or self.phase is QuorumPhase.GATHERING:
            return []  # an answer to an earlier claim
        if self._established:
            self._enter(QuorumPhase.FENCED)
            return [ev.WriterFenced(event.promised)]
        self._enter(QuorumPhase.GATHERING)
        self.chain = []
        return [ev.RetryClaim(event.promised)]

    # Completing copies

    def _go_on(self) -> list[ev.QuorumAction]:
        """Take all steps that are possible now."""
        actions: list[ev.QuorumAction] = []
        if self.phase in (QuorumPhase.WRITING_BACK, QuorumPhase.LEADING):
            actions += self._count()
            for replica, copy in enumerate(self.copies):
                if copy.holds == self.fence and not copy.is_live and not copy.is_busy:
                    actions += self._bring_up(replica, copy)
        if self.phase is QuorumPhase.LEADING:
            actions += self._send_queued()
            if self._is_roll_due():
                self._wants_roll = False
                actions += self._claim(self.fence + 1)
        return actions

    def _bring_up(self, replica: int, copy: CopyView) -> list[ev.QuorumAction]:
        """Send a copy the next object or bytes that it lacks."""
        for link in self.chain:
            if link.number < copy.mark:
                continue
            known = copy.objects.get(link.number)
            if known is None:
                copy.is_busy = True
                return [ev.SendCreate(replica, self.fence, link.number, link.head, self.mark)]
            if known.written < link.length:
                return self._fill(replica, copy, link, known.written)
        copy.is_live = True
        copy.sent, copy.sent_number = self._own.length, self._own.number
        return self._delete_below_mark(replica, copy)

    def _fill(self, replica: int, copy: CopyView, link: ChainLink, offset: int) -> list[ev.QuorumAction]:
        own = [append for append in self._waiting if append.number == link.number and append.offset >= offset]
        if own and own[0].offset == offset:
            return self._send(replica, copy, link, [(append.data, append.checksum) for append in own], offset)
        for source, other in enumerate(self.copies):
            known = other.objects.get(link.number)
            is_source = other.holds == self.fence and other is not copy and not other.is_unreadable
            if is_source and known is not None and known.written > offset:
                copy.is_busy, copy.reads_from = True, source
                return [ev.SendRead(source, replica, link.number, offset)]
        return []

    def _found(self, event: ev.ChunksFound) -> list[ev.QuorumAction]:
        copy = self.copies[event.target]
        if copy.reads_from != event.source or copy.holds != self.fence:
            return []
        copy.stop()
        link = next((link for link in self.chain if link.number == event.number), None)
        known = copy.objects.get(event.number)
        if link is None or known is None or known.written != event.offset:
            return []
        if not event.chunks:
            reason = f"object {event.number} ends before {link.length} bytes"
            return [ev.DropReplica(event.source, reason), *self._down(event.source)]
        return self._send(event.target, copy, link, event.chunks, event.offset)

    def _send(
        self, replica: int, copy: CopyView, link: ChainLink, chunks: Iterable[tuple[bytes, int]], offset: int
    ) -> list[ev.QuorumAction]:
        """Send a copy the bytes that it lacks. Bytes after the length of the link are dead, and are not sent."""
        chosen = sendable(link, chunks, offset)
        if chosen:
            offset = chosen[-1][0] + len(chosen[-1][1])
            copy.is_busy, copy.sent, copy.sent_number = True, offset, link.number
        return [
            ev.SendAppend(replica, self.fence, link.number, start, checksum, data, start + len(data) == offset)
            for start, data, checksum in chosen
        ]

    def _progressed(self, event: ev.ObjectProgress) -> list[ev.QuorumAction]:
        copy = self.copies[event.replica]
        link = next((link for link in self.chain if link.number == event.number), None)
        if not copy.is_up:
            return []
        known = copy.objects.get(event.number)
        if link is not None:
            head = link.head if known is None else known.head
            copy.objects[event.number] = ObjectState(head, event.written, event.synced, event.checksum)
        # This includes objects that were deleted elsewhere meanwhile.
        if copy.is_busy and copy.reads_from is None:
            copy.is_busy = known is not None and copy.sent_number == event.number and event.written < copy.sent
        return []

    # Appending

    def _is_roll_due(self) -> bool:
        own = self._own
        if own.length >= self._roll_bytes or self._appends >= self._roll_appends or own.head.is_joint:
            return True
        wanted = self._wanted
        is_ready = all(
            copy.is_live for copy in self.copies if copy.is_up and copy.identity not in own.head.config.members
        )
        return self._wants_roll or (wanted != own.head.config and is_ready)

    def _send_queued(self) -> list[ev.QuorumAction]:
        actions: list[ev.QuorumAction] = []
        own = self._own
        while self._queued and not self._is_roll_due():
            data, is_barrier = self._queued.popleft()
            append = WaitingAppend(own.number, own.length, data, zlib.crc32(data, own.checksum), is_barrier)
            own.length, own.checksum = append.end, append.checksum
            self._appends += 1
            self._waiting.append(append)
            for replica, copy in enumerate(self.copies):
                if copy.is_live:
                    actions += self._send_live(replica, copy, append)
        return actions

    def _send_live(self, replica: int, copy: CopyView, append: WaitingAppend) -> list[ev.QuorumAction]:
        if copy.sent - copy.objects[append.number].written > LAG_BYTES_MAX:
            copy.is_live, copy.is_busy = False, True  # until it has written the bytes that were sent
            return []
        copy.sent = append.end
        number, offset, checksum = append.number, append.offset, append.checksum
        return [ev.SendAppend(replica, self.fence, number, offset, checksum, append.data, append.is_barrier)]

    def _count(self) -> list[ev.QuorumAction]:
        """Count the appends that the quorum has synced."""
        actions: list[ev.QuorumAction] = []
        own = self._own
        if self.phase is QuorumPhase.WRITING_BACK:
            created = {copy.identity for copy in self.copies if own.number in copy.objects}
            if is_written(own.head, created):
                self._enter(QuorumPhase.LEADING)
                self._established = own.number
                actions.append(ev.Established(self.fence))
        if self.phase is not QuorumPhase.LEADING:
            return actions
        before = self.acknowledged
        while self._waiting and self._is_synced(self._waiting[0]):
            self._waiting.popleft()
            self.acknowledged += 1
        return [*actions, ev.Acknowledged(self.acknowledged)] if self.acknowledged > before else actions

    def _is_synced(self, append: WaitingAppend) -> bool:
        own = self._own
        if append.number < own.number:
            return True  # a quorum has the writer's own object, and so all earlier objects
        return is_written(own.head, {copy.identity for copy in self.copies if copy.has(own.number, append.end)})

    def _retain(self, mark: int) -> list[ev.QuorumAction]:
        if self.phase is not QuorumPhase.LEADING or mark not in [link.number for link in self.chain]:
            raise LocalProtocolError(f"the mark {mark} names no object of the established history")
        self.mark = mark
        self.chain = [link for link in self.chain if link.number >= mark]
        live = [(replica, copy) for replica, copy in enumerate(self.copies) if copy.is_live]
        return [action for replica, copy in live for action in self._delete_below_mark(replica, copy)]

    def _delete_below_mark(self, replica: int, copy: CopyView) -> list[ev.QuorumAction]:
        if copy.mark >= self.mark:
            return []
        copy.mark = self.mark
        copy.objects = {number: known for number, known in copy.objects.items() if number >= self.mark}
        return [ev.SendRetain(replica, self.fence, self.mark)]
