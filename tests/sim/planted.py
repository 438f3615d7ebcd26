"""Bugs to plant: each removes one rule from a core, or from the order of steps around it, and changes nothing else.

Invariant: each of them was once a real bug, here or in a similar system; none is a syntax error.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from procession.commit import checkpoint as checkpoint_module
from procession.commit import round_events as ev
from procession.commit.abandoned_gateways import SUFFIX
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.performer import CommitPerformer
from procession.commit.spark_log import SparkLog
from procession.commit.two_phase import TwoPhase
from procession.connectors.file_sink import FileOutput
from procession.errors import StorageError
from procession.gateway import recovery
from procession.gateway.confirmation import KnownLog, check_offered
from procession.gateway.control import ControlServer
from procession.gateway.gateway_directory import MemberFile, save_snapshot
from procession.gateway.gateway_events import Action, SnapshotWritten, TrimLog, WriteSnapshot
from procession.gateway.global_registry import GlobalRegistry, Grant, Refusal
from procession.gateway.members import Members, MemberStatus
from procession.gateway.performer import GatewayPerformer
from procession.gateway.registry import RegisteredStream
from procession.gateway.retired_streams import RetiredStreams
from procession.gateway.stream_leases import StreamLeases
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.sim.oracle import STATES
from procession.sim.simulated_spark import Spark
from procession.sim.simulated_states import SimulatedStateStore
from procession.storage import journal
from procession.storage.driver_claim import CURRENT
from procession.storage.durable import fsync_dir, storage_error, write_durably
from procession.storage.journal import Entry, Journal
from procession.storage.log import IngressLog
from procession.storage.log_ranges import LogOffset
from procession.storage.state_store import TaskStates
from procession.storage.state_version import StateVersion
from procession.wire.messages import NOTHING_COMMITTED

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Report a failing disk as the shipped code does, also from a planted bug."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, "write", error) from error


def nothing(*_: Any) -> None:
    """Do nothing, in place of a step."""


def offsets_not_synced_before_phase_1(patch: Patch) -> None:
    patch.setattr(SparkLog, "sync_offsets", nothing)


def round_record_not_synced_before_the_epoch_is_finished(patch: Patch) -> None:
    def write(path: Path, data: bytes, files: FileSystem) -> None:
        with told(path), files.open(path, OpenMode.REPLACE) as file:
            file.write(0, data)

    patch.setattr("procession.commit.round_files.write_durably", write)


def phase_2_before_the_decision(patch: Patch) -> None:
    before = Coordinator._recorded

    def recorded(self: Coordinator, event: ev.RecordWritten) -> list[ev.Action]:
        votes = [(name, sink.vote) for name, sink in self.sinks.items()]
        return [
            *before(self, event),
            *(ev.SendPhase2(name, vote.txn, True) for name, vote in votes if vote is not None),
        ]

    patch.setattr(Coordinator, "_recorded", recorded)


def commits_not_synced_before_phase_2(patch: Patch) -> None:
    patch.setattr(SparkLog, "sync_commit", SparkLog.mark_decided)


def fence_not_checked_after_the_commit(patch: Patch) -> None:
    def found(self: CommitPerformer, epoch: int) -> None:
        self._checkpoint.log.sync_commit(epoch)
        self._handle(ev.CommitFound(epoch))

    patch.setattr(CommitPerformer, "_commit_found", found)


def a_transaction_id_is_used_again(patch: Patch) -> None:
    before = Coordinator.emit

    def emit(self: Coordinator, name: str) -> list[ev.Action]:
        self.sinks[name].attempt = 0
        return before(self, name)

    patch.setattr(Coordinator, "emit", emit)


def an_abort_vote_is_taken_for_a_commit_vote(patch: Patch) -> None:
    before = TwoPhase.voted

    def voted(self: TwoPhase, core: Coordinator, event: ev.VoteReceived) -> list[ev.Action]:
        return before(self, core, ev.VoteReceived(event.sink, event.txn, True))

    patch.setattr(TwoPhase, "voted", voted)


def a_listed_transaction_is_aborted_while_in_doubt(patch: Patch) -> None:
    before = TwoPhase.decide
    patch.setattr(TwoPhase, "decide", lambda self, core, name, text: before(self, core, name, text) or False)


def a_listed_transaction_of_a_committed_epoch_is_aborted(patch: Patch) -> None:
    before = TwoPhase.decide

    def decide(self: TwoPhase, core: Coordinator, name: str, text: str) -> bool | None:
        return None if before(self, core, name, text) is None else False

    patch.setattr(TwoPhase, "decide", decide)


def the_point_of_reference_is_one_too_high(patch: Patch) -> None:
    patch.setattr(
        RegisteredStream,
        "point_of_reference",
        property(lambda stream: NOTHING_COMMITTED if stream.committed is None else stream.committed + 1),
    )


def the_point_of_reference_is_what_was_seen(patch: Patch) -> None:
    patch.setattr(
        RegisteredStream,
        "point_of_reference",
        property(lambda stream: NOTHING_COMMITTED if stream.seen is None else stream.seen),
    )


def what_was_seen_is_forgotten_on_reconnect(patch: Patch) -> None:
    before = RegisteredStream.open

    def opened(self: RegisteredStream, session: int, name: str) -> None:
        self.seen = self.committed
        before(self, session, name)

    patch.setattr(RegisteredStream, "open", opened)


def ack_before_the_snapshot(patch: Patch) -> None:
    async def write(self: GatewayPerformer, actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, WriteSnapshot)
            followers = self._decided(SnapshotWritten(action.snapshot))
            for follower in followers:
                if not isinstance(follower, TrimLog):
                    self._perform(follower)
            await self._durably(save_snapshot, self.config.directory, action.snapshot, self.host.files)
            for follower in followers:
                if isinstance(follower, TrimLog):
                    self._perform(follower)

    patch.setattr(GatewayPerformer, "_write_snapshot", write)


def trim_before_the_snapshot(patch: Patch) -> None:
    before = GatewayPerformer._write_snapshot

    async def write(self: GatewayPerformer, actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, WriteSnapshot)
            self._perform(TrimLog(action.snapshot.end_sequence))
        await before(self, actions)

    patch.setattr(GatewayPerformer, "_write_snapshot", write)


def what_is_not_on_disk_is_offered(patch: Patch) -> None:
    patch.setattr(IngressLog, "sync", lambda self: setattr(self, "durable_end", self.next_sequence))


def the_sink_replies_before_its_vote_is_durable(patch: Patch) -> None:
    before = Journal.append
    patch.setattr(Journal, "append", lambda self, entry: before(self, entry, is_synced=False))


def the_sink_votes_before_its_data_is_durable(patch: Patch) -> None:
    patch.setattr(FileOutput, "prepare", lambda self, transaction: None)


def a_torn_file_of_sparks_is_copied(patch: Patch) -> None:
    patch.setattr("procession.commit.spark_log._is_all", lambda data, part: True)


def the_snapshot_that_recovery_finds_is_not_synced(patch: Patch) -> None:
    """A former bug of ours that the simulator found: a sync of the directory failed, and the successor relied on what
    it read."""
    before = recovery.renew

    def renew(directory: Path, found: recovery.RecoveredGateway, files: FileSystem) -> None:
        if found.snapshot.retired is not None:
            before(directory, found, files)

    patch.setattr(recovery, "renew", renew)


def a_retired_stream_is_forgotten(patch: Patch) -> None:
    patch.setattr(RetiredStreams, "committed", lambda self, stream_id: None)


def a_successor_copies_before_it_takes_over(patch: Patch) -> None:
    """The successor replaces `CURRENT` last, so it misses what its predecessor commits in the meantime."""
    copy_last = Checkpoint.copy_last

    def write(path: Path, data: bytes, files: FileSystem) -> None:
        if path.name == CURRENT:
            with told(path):
                copy_last(Checkpoint(path.parent, "", int(data), files), {})
        write_durably(path, data, files)

    patch.setattr("procession.commit.checkpoint.write_durably", write)
    patch.setattr(Checkpoint, "copy_last", nothing)


def folders_of_a_new_checkpoint_are_not_synced(patch: Patch) -> None:
    patch.setattr("procession.commit.spark_log.fsync_dir", nothing)


def a_compacted_log_is_renamed_before_it_is_synced(patch: Patch) -> None:
    def write(path: Path, data: bytes, files: FileSystem) -> None:
        draft = path.with_name("draft")
        with told(path), files.open(draft, OpenMode.REPLACE) as file:
            file.write(0, data)
            files.rename(draft, path)
        fsync_dir(path.parent, files)

    patch.setattr("procession.storage.journal.write_durably", write)


def a_compacted_log_is_written_in_place(patch: Patch) -> None:
    def replace(self: Journal, entries: Iterable[Entry]) -> None:
        assert self._file is not None
        self._file.truncate(0)
        self._end = 0
        for entry in entries:
            self.append(entry, is_synced=False)
        with told(self.path):
            self._file.sync()

    patch.setattr(Journal, "replace", replace)


def a_new_leader_grants_before_it_has_heard_everybody(patch: Patch) -> None:
    """The leader has lost which gateway holds which stream, and does not wait for the reports."""
    before = GlobalRegistry.__init__

    def begin(self: GlobalRegistry, *arguments: Any) -> None:
        before(self, *arguments)
        self._unreported.clear()

    patch.setattr(GlobalRegistry, "__init__", begin)


def the_leader_takes_streams_from_a_gateway_that_is_silent(patch: Patch) -> None:
    before = GlobalRegistry.lost

    def lost(self: GlobalRegistry, link: int) -> None:
        name = self._gateway_of(link)
        before(self, link)
        self.active = {stream: holder for stream, holder in self.active.items() if holder != name}

    patch.setattr(GlobalRegistry, "lost", lost)


def a_stream_is_given_up_before_what_came_of_it_is_committed(patch: Patch) -> None:
    before = StreamLeases.settle
    patch.setattr(StreamLeases, "settle", lambda self, end_sequence: before(self, 2**63))


def a_stream_that_moves_is_opened_one_too_high(patch: Patch) -> None:
    before = GlobalRegistry.notify

    def notify(self: GlobalRegistry, link: int, stream_id: int) -> Grant | Refusal:
        answer = before(self, link, stream_id)
        if isinstance(answer, Grant) and answer.committed is not None:
            return Grant(stream_id, answer.committed + 1)
        return answer

    patch.setattr(GlobalRegistry, "notify", notify)


def a_restarted_gateway_forgets_what_it_holds(patch: Patch) -> None:
    """Its log has uncommitted rows of streams that the gateway does not claim."""
    before = StreamLeases.__init__
    patch.setattr(StreamLeases, "__init__", lambda self, held, until, **more: before(self, (), until, **more))


def the_leader_does_not_put_on_disk_who_belongs_to_it(patch: Patch) -> None:
    """After a restart the leader does not know which gateways to wait for."""
    patch.setattr(MemberFile, "save", lambda self, document: None)


def states_are_not_synced_before_the_commit(patch: Patch) -> None:
    patch.setattr("procession.storage.state_store.fsync_dir", lambda directory, files: None)


def states_are_found_by_being_the_newest(patch: Patch) -> None:
    """The states of an attempt that was never committed are newer than those that the round names."""

    def version(self: SimulatedStateStore, epoch: int) -> StateVersion:
        named, found = before(self, epoch), sorted(self.files.names(Path(STATES)))
        newest = [[name for name in found if f"-{task:06d}-" in name][-1:] for task in range(len(named.tasks))]
        return StateVersion(tuple(tuple((name, 1) for name in names) for names in newest), named.kind)

    before = SimulatedStateStore.version
    patch.setattr(SimulatedStateStore, "version", version)


def states_are_dropped_before_the_next_are_committed(patch: Patch) -> None:
    before = CommitPerformer._perform

    def perform(self: CommitPerformer, action: ev.Action) -> None:
        if isinstance(action, ev.WriteRecord):
            self._drop_states(action.record)
        before(self, action)

    patch.setattr(CommitPerformer, "_perform", perform)


def states_stay_with_their_task_when_there_is_another_number_of_tasks(patch: Patch) -> None:
    before = TaskStates.adopt
    patch.setattr(TaskStates, "adopt", lambda self, layers, share: before(self, layers[share[2] : share[2] + 1], share))


def the_merger_gives_out_a_path_before_the_others_have_reached_it(patch: Patch) -> None:
    patch.setattr("procession.merge.kway._Path.take_up_to", lambda self, frontier: self.take())


def a_commit_is_synced_by_whoever_comes_first_and_again_by_the_next(patch: Patch) -> None:
    """Spark's helper fails to sync `commits/N`, the query ends, and the driver syncs the same file again."""

    def sync(self: SparkLog, part: str, epoch: int) -> None:
        path = self.directory / part / str(epoch)
        with told(path), self._files.open(path, OpenMode.WRITE) as file:
            file.sync()
        fsync_dir(path.parent, self._files)
        fsync_dir(self.directory, self._files)

    before = Spark._trigger

    def trigger(self: Spark) -> Iterator[None]:
        if (newest := self._checkpoint.log.committed) >= 0:
            yield from self.blocking(sync, self._checkpoint.log, "commits", newest)
        yield from before(self)

    patch.setattr(SparkLog, "_renew", sync)
    patch.setattr(Spark, "_trigger", trigger)


def a_sinks_log_is_trusted_because_it_can_be_read(patch: Patch) -> None:
    def sync_in_place(path: Path, length: int, files: FileSystem) -> None:
        with told(path), files.open(path, OpenMode.WRITE) as file:
            file.truncate(length)
            file.sync()
        fsync_dir(path.parent, files)

    patch.setattr("procession.storage.journal.renew_durably", sync_in_place)


def an_output_is_trusted_because_it_has_a_name(patch: Patch) -> None:
    before = FileOutput.__init__

    def made(self: FileOutput, path: Path, files: FileSystem) -> None:
        is_there = files.exists(path)
        before(self, path, files)
        if is_there:
            self._has_vote = True
            fsync_dir(path.parent, files)

    patch.setattr(FileOutput, "__init__", made)


def producers_are_admitted_before_the_directory_is_confirmed(patch: Patch) -> None:
    """The directory may be an older copy, which then reports an earlier committed position to producers."""
    before = GatewayPerformer.__init__

    def begin(self: GatewayPerformer, *arguments: Any) -> None:
        before(self, *arguments)
        self.is_confirmed = True

    patch.setattr(GatewayPerformer, "__init__", begin)


def any_directory_is_taken_for_the_last_one(patch: Patch) -> None:
    patch.setattr("procession.gateway.control.check_offered", lambda log, offered, name: None)


def of_a_log_only_the_length_is_compared(patch: Patch) -> None:
    """A former bug of ours: an older copy was accepted if producers had filled it up before the driver asked."""

    def check(log: KnownLog, offered: LogOffset, name: str) -> None:
        if offered.sequence > log.next_sequence:
            check_offered(log, offered, name)

    producers_are_admitted_before_the_directory_is_confirmed(patch)
    patch.setattr("procession.gateway.control.check_offered", check)


def a_gateway_that_lacks_the_last_commit_admits_producers(patch: Patch) -> None:
    """A former bug of ours: a copy with a complete log was confirmed, whatever had been committed since."""
    patch.setattr(ControlServer, "_is_behind", lambda self, known: False)


def a_commit_is_taken_for_all_that_a_gateway_lacks(patch: Patch) -> None:
    """A driver repeats its last commit at its start, also to a gateway that lacks more than that commit names."""
    a_commit_is_taken_before_the_log_is_compared(patch)
    patch.setattr("procession.gateway.retirement.check_epochs", lambda epochs, epochs_kept: None)


def a_commit_is_taken_before_the_log_is_compared(patch: Patch) -> None:
    """A former bug of ours: the gateway's latest directory then lacks a commit that an older copy has reported."""
    patch.setattr(ControlServer, "_check_compared", nothing)


def a_leader_that_lacks_a_gateway_is_taken_for_the_last_one(patch: Patch) -> None:
    """A former bug of ours: a copy from before a gateway joined lacks only one epoch, and refuses that gateway
    forever."""
    patch.setattr("procession.gateway.control.check_gateways", lambda members, known, name: None)


def an_unfinished_entry_of_a_sinks_log_is_damage(patch: Patch) -> None:
    """A former bug of ours: a power cut kept the end of an entry and not its beginning."""
    before = journal._is_torn

    def lines(file: OpenFile, position: int) -> Iterator[bytes]:
        return (line.replace(b"\0\0", b"??") if not before(line) else line for line in read_lines(file, position))

    read_lines = journal._lines
    patch.setattr(journal, "_lines", lines)


def only_a_full_disk_and_a_failed_sync_end_a_driver(patch: Patch) -> None:
    """A former bug of ours: file systems that become read-only were not considered."""

    def write(path: Path, data: bytes, files: FileSystem) -> None:
        try:
            write_durably(path, data, files)
        except StorageError as error:
            if error.fields.get("errno") in (errno.ENOSPC, errno.EIO):
                raise

    patch.setattr("procession.commit.round_files.write_durably", write)


def the_offered_records_of_an_abandoned_gateway_are_read_again(patch: Patch) -> None:
    patch.setattr(checkpoint_module, "are_voided", lambda starts, ends, abandoned: False)


def the_file_of_an_abandoned_gateway_is_not_synced(patch: Patch) -> None:
    """Neither by the command nor by the next driver, which has told the leader when a power cut takes the file."""

    def write(path: Path, data: bytes, files: FileSystem) -> None:
        if path.suffix != SUFFIX:
            write_durably(path, data, files)
            return
        with files.open(path, OpenMode.REPLACE) as file:
            file.write(0, data)

    patch.setattr("procession.commit.log_locations.write_durably", write)


def an_abandoned_gateway_may_join_again(patch: Patch) -> None:
    """Its producers then stay with it, and none of their records is ever committed."""

    def abandon(members: Members, name: str, identity: str) -> str:
        members.stand(name, MemberStatus.LEFT)
        return name

    patch.setattr(Members, "abandon", abandon)


@dataclass(frozen=True)
class Bug:
    """`seed` is where a test begins to search, so that it is short; `runs` is how many it took from seed 0 on, when
    this was written."""

    plant: Plant
    seed: int
    runs: int
    blind_seed: int | None = None
    """The seed with which a check without access to the disk finds it, or None if it was not found in the first 700."""
    is_slow: bool = False
    """Whether `seed` and `runs` are those of an earlier version of the simulator: the search may take thousands of
    runs."""
    has_plan: bool = False
    """Whether `plans/` has a plan of its name that finds it. The test begins there and goes on with its neighbours."""


BUGS = (
    Bug(offsets_not_synced_before_phase_1, seed=0, runs=1),
    Bug(round_record_not_synced_before_the_epoch_is_finished, seed=0, runs=1),
    Bug(phase_2_before_the_decision, seed=0, runs=1, blind_seed=0),
    Bug(commits_not_synced_before_phase_2, seed=0, runs=1),
    Bug(fence_not_checked_after_the_commit, seed=0, runs=493, has_plan=True),
    Bug(a_transaction_id_is_used_again, seed=0, runs=1, blind_seed=0),
    Bug(an_abort_vote_is_taken_for_a_commit_vote, seed=27, runs=28, blind_seed=27),
    Bug(a_listed_transaction_is_aborted_while_in_doubt, seed=0, runs=611, has_plan=True),
    Bug(a_listed_transaction_of_a_committed_epoch_is_aborted, seed=27, runs=28, blind_seed=27),
    Bug(the_point_of_reference_is_one_too_high, seed=0, runs=1),
    Bug(the_point_of_reference_is_what_was_seen, seed=20, runs=21),
    Bug(what_was_seen_is_forgotten_on_reconnect, seed=20, runs=21, blind_seed=20),
    Bug(ack_before_the_snapshot, seed=0, runs=1),
    Bug(trim_before_the_snapshot, seed=0, runs=1),
    Bug(what_is_not_on_disk_is_offered, seed=15, runs=16),
    Bug(the_sink_replies_before_its_vote_is_durable, seed=0, runs=1),
    Bug(the_sink_votes_before_its_data_is_durable, seed=0, runs=1, blind_seed=0),
    Bug(a_torn_file_of_sparks_is_copied, seed=490, runs=491),
    Bug(the_snapshot_that_recovery_finds_is_not_synced, seed=6068, runs=6069, is_slow=True),
    Bug(a_retired_stream_is_forgotten, seed=8, runs=9),
    Bug(a_successor_copies_before_it_takes_over, seed=106, runs=107),
    Bug(folders_of_a_new_checkpoint_are_not_synced, seed=0, runs=1),
    Bug(a_compacted_log_is_renamed_before_it_is_synced, seed=0, runs=1),
    Bug(a_compacted_log_is_written_in_place, seed=0, runs=1560, has_plan=True),
    Bug(a_new_leader_grants_before_it_has_heard_everybody, seed=124, runs=125),
    Bug(the_leader_takes_streams_from_a_gateway_that_is_silent, seed=216, runs=217),
    Bug(a_stream_is_given_up_before_what_came_of_it_is_committed, seed=124, runs=125, blind_seed=124),
    Bug(a_stream_that_moves_is_opened_one_too_high, seed=0, runs=1, blind_seed=70),
    Bug(a_restarted_gateway_forgets_what_it_holds, seed=565, runs=566, blind_seed=565),
    Bug(the_leader_does_not_put_on_disk_who_belongs_to_it, seed=1, runs=2),
    Bug(a_commit_is_synced_by_whoever_comes_first_and_again_by_the_next, seed=0, runs=4332, has_plan=True),
    Bug(a_sinks_log_is_trusted_because_it_can_be_read, seed=857, runs=858, is_slow=True),
    Bug(an_output_is_trusted_because_it_has_a_name, seed=4088, runs=4089, is_slow=True),
    Bug(states_are_not_synced_before_the_commit, seed=0, runs=1),
    Bug(states_are_found_by_being_the_newest, seed=8, runs=9, blind_seed=369),
    Bug(states_are_dropped_before_the_next_are_committed, seed=68, runs=69, blind_seed=68),
    Bug(states_stay_with_their_task_when_there_is_another_number_of_tasks, seed=11, runs=12, blind_seed=11),
    Bug(the_merger_gives_out_a_path_before_the_others_have_reached_it, seed=74, runs=75, blind_seed=74),
    Bug(producers_are_admitted_before_the_directory_is_confirmed, seed=125, runs=126, blind_seed=125),
    Bug(any_directory_is_taken_for_the_last_one, seed=1514, runs=1515, blind_seed=1514),
    Bug(of_a_log_only_the_length_is_compared, seed=125, runs=126, blind_seed=125),
    Bug(a_gateway_that_lacks_the_last_commit_admits_producers, seed=230, runs=231),
    Bug(a_commit_is_taken_for_all_that_a_gateway_lacks, seed=2589, runs=2590, is_slow=True),
    Bug(a_commit_is_taken_before_the_log_is_compared, seed=0, runs=4582, has_plan=True),
    Bug(a_leader_that_lacks_a_gateway_is_taken_for_the_last_one, seed=0, runs=16761, has_plan=True),
    Bug(an_unfinished_entry_of_a_sinks_log_is_damage, seed=2641, runs=2642, is_slow=True),
    Bug(only_a_full_disk_and_a_failed_sync_end_a_driver, seed=21, runs=22, is_slow=True),
    Bug(the_offered_records_of_an_abandoned_gateway_are_read_again, seed=320, runs=321),
    Bug(the_file_of_an_abandoned_gateway_is_not_synced, seed=1063, runs=1064),
    Bug(an_abandoned_gateway_may_join_again, seed=130, runs=131),
)
