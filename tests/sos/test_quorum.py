"""The writer of a replicated volume: what it acknowledges, which copies it counts, and which history it continues."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from procession.errors import LocalProtocolError
from procession.sos import quorum, quorum_copies, volume_rules
from procession.sos import quorum_events as ev
from procession.sos.quorum import QuorumWriter
from procession.sos.quorum_copies import (
    PHASES,
    CopyView,
    QuorumPhase,
    claims_needed,
    longest_history,
)
from procession.sos.volume_rules import ObjectHead
from tests.sos.quorum_model import Broken, ModelWorld, ModelWriter

Patch = pytest.MonkeyPatch


def test_a_writer_makes_only_the_transitions_of_its_table() -> None:
    for before, after in itertools.product(QuorumPhase, QuorumPhase):
        writer = QuorumWriter(3, 2)
        writer.phase = before
        if after in PHASES[before]:
            writer._enter(after)
            assert writer.phase is after
        else:
            with pytest.raises(LocalProtocolError):
                writer._enter(after)


# A writer alone


def established(world: ModelWorld, **options: int) -> ModelWriter:
    writer = world.start(**options)
    world.settle(writer)
    assert writer.core.phase is QuorumPhase.LEADING
    return writer


def with_an_append_on_copy_0() -> tuple[ModelWorld, ModelWriter]:
    """Return a world, and its writer, which died when only copy 0 had its second append. That was not acknowledged."""
    world = ModelWorld()
    writer = established(world)
    writer.append()
    world.settle()
    writer.append()
    writer.deliver(0)
    writer.is_alive = False
    return world, writer


def test_a_writer_begins_a_volume_appends_and_is_acknowledged() -> None:
    world = ModelWorld()
    writer = established(world)
    for _ in range(5):
        writer.append()
    world.settle()
    assert writer.core.acknowledged == 5
    assert all(copy.objects[1].length() == 5 * len(b"1.0;") for copy in world.copies)


def test_a_volume_begins_only_when_all_copies_answer_and_none_has_an_object() -> None:
    world = ModelWorld()
    writer = world.start(connected=lambda replica: replica < 2)
    world.settle()
    assert writer.core.phase is QuorumPhase.GATHERING
    writer.connect(2)
    world.settle()
    assert writer.core.phase is QuorumPhase.LEADING


def test_a_restore_never_begins_a_volume() -> None:
    world = ModelWorld()
    writer = ModelWriter(world, 1, may_begin=False)
    for replica in range(3):
        writer.connect(replica)
    world.settle(writer)
    assert writer.core.phase is QuorumPhase.GATHERING


@pytest.mark.parametrize(("copies", "write_quorum"), [(1, 1), (2, 2), (3, 2), (3, 3), (5, 3)])
def test_nothing_is_acknowledged_before_the_quorum_has_synced_it(copies: int, write_quorum: int) -> None:
    world = ModelWorld(copies, write_quorum)
    writer = established(world)
    writer.append()
    for replica in range(copies):
        assert writer.core.acknowledged == (1 if replica >= write_quorum else 0)
        writer.deliver(replica)
        writer.answer(replica)
    assert writer.core.acknowledged == 1


def test_appends_are_pipelined_and_one_barrier_acknowledges_all_before_it() -> None:
    world = ModelWorld()
    writer = established(world)
    for number in range(4):
        writer.append(is_barrier=number == 3)
    assert [len(queue) for queue in writer.requests] == [4, 4, 4]
    for _ in range(3):
        writer.deliver(0), writer.deliver(1)
        writer.answer(0), writer.answer(1)
    assert writer.core.acknowledged == 0
    world.settle()
    assert writer.core.acknowledged == 4


def test_with_a_quorum_the_writer_continues_and_the_copy_that_was_away_catches_up() -> None:
    world = ModelWorld()
    writer = established(world)
    writer.disconnect(2)
    for _ in range(6):
        writer.append()
    world.settle()
    assert (writer.core.acknowledged, writer.core.missing) == (6, [2])
    writer.connect(2)
    writer.append()
    world.settle()
    assert writer.core.missing == []
    assert world.copies[2].objects[1].length() == world.copies[0].objects[1].length()


def test_without_the_quorum_nothing_is_acknowledged_until_it_is_back() -> None:
    world = ModelWorld()
    writer = established(world)
    writer.disconnect(1), writer.disconnect(2)
    writer.append()
    world.settle()
    assert (writer.core.acknowledged, writer.core.missing) == (0, [1, 2])
    writer.connect(1)
    world.settle()
    assert writer.core.acknowledged == 1


def test_a_slow_copy_gets_no_more_than_the_limit_and_is_brought_up_later(monkeypatch: Patch) -> None:
    monkeypatch.setattr(quorum, "LAG_BYTES_MAX", 10)
    world = ModelWorld()
    writer = established(world)
    for _ in range(20):
        writer.append()
        for replica in (0, 1):
            writer.deliver(replica), writer.answer(replica)
    assert writer.core.acknowledged == 20
    assert len(writer.requests[2]) < 6
    world.settle()
    assert writer.core.missing == []
    assert world.copies[2].objects[1].length() == world.copies[0].objects[1].length()


def test_a_large_object_is_followed_by_the_next_and_what_waits_is_not_lost() -> None:
    world = ModelWorld()
    writer = established(world, roll_bytes=10)
    for _ in range(10):
        writer.append()
    world.settle()
    assert writer.core.acknowledged == 10
    assert len(world.copies[0].objects) > 2
    successor = established(world)
    assert successor.history == writer.payloads


def test_objects_below_the_mark_are_deleted_also_where_a_copy_was_away() -> None:
    world = ModelWorld()
    writer = established(world, roll_bytes=10)
    writer.disconnect(2)
    for _ in range(8):
        writer.append()
    world.settle()
    mark = writer.core.chain[-1].number
    writer.take(ev.RetainAsked(mark))
    world.settle()
    assert [min(copy.objects) for copy in world.copies] == [mark, mark, 1]
    writer.connect(2)
    world.settle()
    assert [(min(copy.objects), copy.mark) for copy in world.copies] == [(mark, mark)] * 3
    assert [link.number for link in established(world).core.chain[:-1]] == [mark]
    writer.core.phase = QuorumPhase.LEADING
    with pytest.raises(LocalProtocolError):
        writer.take(ev.RetainAsked(1))


@pytest.mark.parametrize("steps", range(24))
def test_a_copy_that_is_being_filled_while_the_others_delete_is_filled_from_the_mark_on(steps: int) -> None:
    world = ModelWorld()
    writer = established(world, roll_bytes=10)
    writer.disconnect(2)
    for _ in range(8):
        writer.append()
    world.settle()
    world.lose(2)
    writer.connect(2)
    for step in range(steps):
        for replica in range(3):
            writer.deliver(replica) if step % 2 == 0 else writer.answer(replica)
    mark = max(link.number for link in writer.core.chain if link.number <= writer.core._established)
    if writer.core.phase is QuorumPhase.LEADING:
        writer.take(ev.RetainAsked(mark))
    world.settle()
    assert writer.core.missing == []
    assert world.copies[2].identity in writer.core.chain[-1].head.config.members
    assert not any(copy.is_unreadable for copy in writer.core.copies)


def test_a_copy_whose_disk_is_full_is_dropped_and_comes_back() -> None:
    world = ModelWorld()
    writer = established(world)
    writer.take(ev.ReplicaRefused(2, volume_rules.RefusalCode.STORAGE, 0, "full"))
    writer.append()
    world.settle()
    assert (writer.core.acknowledged, writer.core.missing) == (1, [2])


def test_a_copy_that_cannot_be_read_is_not_asked_again_while_another_can() -> None:
    world = ModelWorld()
    writer = established(world)
    writer.disconnect(2)
    writer.append()
    world.settle()
    writer.connect(2)
    writer.deliver(2), writer.answer(2)
    assert [type(action) for action in writer.requests[0]] == [ev.SendRead]
    writer.requests[0].clear()
    writer.take(ev.ReadFailed(0, 2, 1))
    assert [type(action) for action in writer.requests[1]] == [ev.SendRead]
    world.settle()
    assert writer.core.missing == []


def test_two_addresses_of_one_service_are_one_replica() -> None:
    world = ModelWorld()
    world.copies[1] = world.copies[0]
    writer = world.start()
    assert not writer.core.copies[1].is_up


# Successors


def test_a_successor_continues_the_acknowledged_history_and_the_old_writer_is_fenced() -> None:
    world = ModelWorld()
    old = established(world)
    for _ in range(3):
        old.append()
    world.settle()
    new = established(world)
    assert new.history == old.payloads
    old.append()
    world.settle()
    assert old.core.phase is QuorumPhase.FENCED
    assert old.core.acknowledged == 3
    assert old.core.handle(ev.AppendAsked(b"x", True)) == []


@pytest.mark.parametrize("lost", range(3))
def test_acknowledged_appends_survive_the_loss_of_any_machine(lost: int) -> None:
    for away in range(3):
        world = ModelWorld()
        old = established(world)
        old.disconnect(away)
        old.append()
        world.settle()
        assert old.core.acknowledged == 1
        old.is_alive = False
        world.lose(lost)
        new = world.start()
        world.settle(new)
        assert new.core.phase is QuorumPhase.LEADING
        assert new.history == old.payloads


def test_a_lost_copy_is_replaced_also_where_every_copy_must_sync() -> None:
    world = ModelWorld(3, 3)
    old = established(world)
    old.append()
    world.settle()
    world.lose(0)
    old.append()
    world.settle()
    assert old.core.acknowledged == 1
    old.connect(0)
    world.settle()
    assert old.core.acknowledged == 2
    old.is_alive = False
    world.lose(1)
    assert established(world).history == old.payloads


def test_a_copy_that_is_lost_before_the_writer_is_established_is_replaced() -> None:
    world = ModelWorld(3, 3)
    writer = world.start()
    while writer.core.phase is not QuorumPhase.WRITING_BACK:
        for replica in range(3):
            writer.deliver(replica), writer.answer(replica)
    world.lose(0)
    writer.append()
    world.settle()
    assert writer.core.acknowledged == 0
    writer.connect(0)
    world.settle()
    assert writer.core.acknowledged == 1
    writer.is_alive = False
    assert established(world).history == writer.payloads


def test_a_writer_does_not_wait_for_unacknowledged_bytes_of_one_copy() -> None:
    """Only copy 0 has an append, which was not acknowledged. The writer chooses copy 0, which is then lost."""
    world, old = with_an_append_on_copy_0()
    new = world.start(connected=lambda replica: replica != 2)
    while new.core.phase is not QuorumPhase.WRITING_BACK:
        for replica in range(2):
            new.deliver(replica), new.answer(replica)
    assert new.core.chain[0].length == len(b"".join(old.payloads))
    new.disconnect(0)
    new.connect(2)
    world.settle(new)
    assert new.core.phase is QuorumPhase.LEADING
    assert new.history == old.payloads[:1]


def test_a_copy_that_came_back_empty_does_not_count_until_it_is_filled() -> None:
    """Copies 0 and 1 have the acknowledged appends. Copy 0 is lost and 1 is away: the empty 0 and the old 2 are not
    enough."""
    world = ModelWorld()
    old = established(world)
    old.disconnect(2)
    old.append()
    world.settle()
    old.is_alive = False
    world.lose(0)
    new = world.start(connected=lambda replica: replica != 1)
    world.settle(new)
    assert new.core.phase is QuorumPhase.GATHERING
    new.connect(1)
    world.settle(new)
    assert new.history == old.payloads


def test_an_empty_copy_is_filled_and_becomes_a_member_and_then_another_may_be_lost() -> None:
    world = ModelWorld()
    writer = established(world)
    for _ in range(3):
        writer.append()
    world.settle()
    for lost in (0, 1, 2, 0, 1):
        world.lose(lost)
        writer.connect(lost)
        writer.append()
        world.settle()
        newest = writer.core.chain[-1].head
        assert not newest.is_joint
        assert world.copies[lost].identity in newest.config.members
    assert writer.core.acknowledged == 8
    writer.is_alive = False
    assert established(world).history == writer.payloads


def test_copies_are_added_and_removed_by_two_agreeing_quorums() -> None:
    world = ModelWorld(1, 1)
    old = established(world)
    old.append()
    world.settle()
    for count, write_quorum in ((3, 2), (5, 3), (3, 2), (2, 2)):
        while len(world.copies) < count:
            world.copies.append(type(world.copies[0])(world))
        del world.copies[count:]
        world.write_quorum = write_quorum
        new = world.start()
        world.settle(new)
        found = new.core.chain[-1].head
        assert (set(found.config.members), found.is_joint) == ({copy.identity for copy in world.copies}, False)
        assert found.config.write_quorum == write_quorum
        assert new.history == old.payloads


def test_a_joint_set_of_members_is_continued_as_it_is_by_another_writer() -> None:
    """A writer dies between the two steps of a change of members, with the joint object on one copy only."""
    world = ModelWorld(1, 1)
    established(world)
    world.copies += [type(world.copies[0])(world) for _ in range(2)]
    world.write_quorum = 2
    middle = world.start()
    while not any(known.head.is_joint for copy in world.copies for known in copy.objects.values()):
        moved = [step(r) for r in range(3) for step in (middle.deliver, middle.answer)]
        assert any(moved)
    middle.is_alive = False
    alone = world.start(connected=lambda replica: replica != 0)
    world.settle(alone)
    assert alone.core.phase is not QuorumPhase.LEADING, "without the old member no decision is possible"
    alone.is_alive = False
    last = world.start()
    world.settle(last)
    assert last.core.phase is QuorumPhase.LEADING
    assert not last.core.chain[-1].head.is_joint


def test_claimants_at_the_same_time_do_not_share_a_fence() -> None:
    world = ModelWorld()
    first, second = world.start(), world.start()
    world.settle()
    first.append()
    second.append()
    world.settle()
    assert len(world.leaders) == 1, "a fenced writer is told at its next append"
    assert first.core.fence != second.core.fence


def test_an_abandoned_append_is_not_copied() -> None:
    """Copy 0 has an append that was not acknowledged, and is away when a successor chooses a history without it."""
    world, old = with_an_append_on_copy_0()
    new = world.start(connected=lambda replica: replica != 0)
    world.settle(new)
    new.append()
    new.connect(0)
    world.settle(new)
    assert new.core.missing == []
    world.lose(1)
    last = world.start(connected=lambda replica: replica != 2)
    world.settle(last)
    assert last.core.phase is QuorumPhase.GATHERING
    last.connect(2)
    world.settle(last)
    assert last.history == [old.payloads[0], *new.payloads]


# Any order


def exhaustive(length: int) -> None:
    """Run two writers, each with an append in flight: every order of the next steps, then all the others."""
    for steps in itertools.product(range(6), repeat=length):
        world = ModelWorld()
        old = established(world)
        old.append()
        new = world.start()
        for step in steps:
            writer, replica = (old, new)[step // 3], step % 3
            writer.deliver(replica)
            writer.answer(replica)
        new.append()
        world.settle()
        old.append()
        world.settle()
        assert world.leaders == [new], steps
        assert established(world).history is not None


def test_every_order_of_two_writers_keeps_acknowledged_appends() -> None:
    exhaustive(3)


@pytest.mark.slow
def test_every_longer_order_of_two_writers_keeps_acknowledged_appends() -> None:
    exhaustive(5)


def wander(seed: int, steps: int = 80) -> ModelWorld:
    """Run random steps, crashes and tolerated losses, with writers that come and resume."""
    chance = random.Random(seed)
    copies, write_quorum = chance.choice([(1, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 3), (5, 3)])
    world = ModelWorld(copies, write_quorum, seed)
    options = {"roll_bytes": chance.choice([8, 20, 1000])}
    lost: set[int] = set()
    world.start(**options)
    for _ in range(steps):
        writer = chance.choice(world.writers[-2:])
        replica = chance.randrange(copies)
        kind = chance.random()
        if kind < 0.62:
            for _ in range(chance.choice([1, 3, 10, 30])):
                chance.choice([writer.deliver, writer.answer])(chance.randrange(copies))
        elif kind < 0.78:
            writer.append(is_barrier=chance.random() < 0.7)
        elif kind < 0.80:
            writer.disconnect(replica)
        elif kind < 0.88:
            for other in range(copies):
                if not writer.core.copies[other].is_up and chance.random() < 0.7:
                    writer.connect(other)
        elif kind < 0.90:
            for each in world.writers:
                each.disconnect(replica)
            world.copies[replica].cut_power()
        elif kind < 0.93:
            lost = _still_lost(world, lost)
            if len(lost | {replica}) <= losses_survived(copies, write_quorum):
                lost.add(replica)
                world.lose(replica)
        elif kind < 0.95 and len(world.writers) < 6:
            world.start(connected=lambda replica: chance.random() < 0.8, **options)
        elif world.retries:
            world.retries.pop(0).take(ev.ClaimAsked())
    return world


def losses_survived(copies: int, write_quorum: int) -> int:
    """Return the number of copies that may be lost at a time, as the decision record promises."""
    return min(write_quorum - 1, (copies + 1) // 2 - 1)


def _still_lost(world: ModelWorld, lost: set[int]) -> set[int]:
    """Return the lost machines: one counts until its new copy is a member and a full quorum has every acknowledged
    append."""
    for writer in world.leaders:
        own = writer.core.chain[-1].head
        is_newest = writer.core.fence == max(known.core.fence for known in world.writers)
        if is_newest and not own.is_joint and not writer.core.missing:
            lost -= {number for number in lost if world.copies[number].identity in own.config.members}
    return lost


def finish(world: ModelWorld) -> None:
    """Bring everything back, and check that a last writer has all acknowledged appends."""
    for writer in world.writers:
        writer.is_alive = False
    world.retries.clear()
    last = world.start()
    world.settle(last)
    assert last.core.phase is QuorumPhase.LEADING
    assert last.history is not None
    assert set(world.checker.acknowledged) <= set(last.history)
    assert len(set(last.history)) == len(last.history)


def search(seeds: range) -> int:
    acknowledged = 0
    for seed in seeds:
        try:
            world = wander(seed)
            finish(world)
        except Broken as error:
            raise Broken(f"seed {seed}: {error}") from error
        acknowledged += len(world.checker.acknowledged)
    return acknowledged


def test_random_runs_with_lost_disks_and_resumed_writers_keep_acknowledged_appends() -> None:
    assert search(range(400)) > 500


@pytest.mark.slow
def test_many_random_runs_keep_acknowledged_appends() -> None:
    search(range(400, 60_000))


# Planted bugs: each removes one rule


def acknowledged_before_the_quorum(patch: Patch) -> None:
    patch.setattr(quorum, "is_written", lambda head, identities: bool(identities))


def restored_from_a_minority(patch: Patch) -> None:
    patch.setattr(quorum_copies, "claims_needed", lambda config: 1)


def the_largest_file_is_restored(patch: Patch) -> None:
    before = longest_history

    def longest(copies: list[CopyView], mark: int) -> list[quorum_copies.ChainLink]:
        largest = max(copies, key=lambda copy: sum(known.written for known in copy.objects.values()))
        return before([largest], mark)

    patch.setattr(quorum, "longest_history", longest)


def an_empty_copy_counts_as_a_member(patch: Patch) -> None:
    before = quorum_copies.is_claimed

    def claimed(found: ObjectHead, identities: set[bytes]) -> bool:
        return before(found, identities) or len(identities) >= claims_needed(found.config)

    patch.setattr(quorum, "is_claimed", claimed)


def a_volume_begins_without_all_copies(patch: Patch) -> None:
    before = QuorumWriter._can_claim

    def can_claim(self: QuorumWriter, copies: list[CopyView]) -> bool:
        if quorum_copies.newest_head(copies) is None:
            return len(copies) >= len(self.copies) // 2 + 1
        return before(self, copies)

    patch.setattr(QuorumWriter, "_can_claim", can_claim)


def the_write_back_is_skipped(patch: Patch) -> None:
    """Skip the write-back of a recovered history, without a check by the service."""
    before = QuorumWriter._bring_up

    def bring_up(self: QuorumWriter, replica: int, copy: CopyView) -> list[ev.QuorumAction]:
        whole, self.chain = self.chain, self.chain[-1:]
        try:
            return before(self, replica, copy)
        finally:
            self.chain = whole

    patch.setattr(QuorumWriter, "_bring_up", bring_up)
    create = volume_rules.check_create
    patch.setattr(
        volume_rules,
        "check_create",
        lambda state, fence, number, found, mark, _: create(
            state, fence, number, found, mark, lambda *_: found.checksum
        ),
    )


def two_leaders(patch: Patch) -> None:
    patch.setattr(volume_rules, "check_holder", lambda *_: None)


def a_claim_reports_what_is_not_synced(patch: Patch) -> None:
    patch.setattr("tests.sos.quorum_model.ModelCopy.sync", lambda self: None)


def a_fence_is_claimed_twice(patch: Patch) -> None:
    def check(state: volume_rules.VolumeState, fence: int, token: bytes) -> None:
        if fence < state.promised:
            raise volume_rules.refused(volume_rules.RefusalCode.FENCED, "too low", state.promised)

    patch.setattr(volume_rules, "check_claim", check)


PLANTED: list[Callable[[Patch], None]] = [
    acknowledged_before_the_quorum,
    restored_from_a_minority,
    the_largest_file_is_restored,
    an_empty_copy_counts_as_a_member,
    a_volume_begins_without_all_copies,
    the_write_back_is_skipped,
    two_leaders,
    a_claim_reports_what_is_not_synced,
    a_fence_is_claimed_twice,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Each is found as a lost or duplicated append, or as a volume that no writer can continue."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        search(range(6000))
