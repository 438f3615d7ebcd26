"""Retired streams: out of the snapshot, remembered elsewhere, and back with their positions, whatever dies when."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.gateway import retired_file
from procession.gateway.gateway_directory import SNAPSHOT, save_snapshot
from procession.gateway.gateway_events import (
    EpochCommitted,
    FrameReceived,
    RetireStreams,
    SessionClosed,
    SessionOpened,
    SnapshotWritten,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.log_rows import LogTail
from procession.gateway.performer import GatewayPerformer
from procession.gateway.plausibility import check_positions, news_of
from procession.gateway.registry import Registry
from procession.gateway.retired_streams import ENTRY, HEADER, Mark, RetiredStreams
from procession.gateway.server import GatewayServer
from procession.gateway.snapshot import Position, Snapshot
from procession.gateway.state import GatewayState
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import NOTHING_COMMITTED, Messages, Notify, NotifyAck
from tests.gateway.bench import A, B, Bench, recovered
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer
from tests.gateway.several import HELLO, Several
from tests.sdk.loops import on_a_loop
from tests.walk import commands

AT_ONCE = Limits(credits_max=100, streams_retire_after_s=0)
S = 7
ALL = 2**40
Make = Callable[..., GatewayProcess]


def retired_bench(limits: Limits = AT_ONCE) -> Bench:
    """A gateway that has had a stream up to message 2, and has retired it."""
    bench = Bench(limits)
    bench.open(A, S)
    bench.message(A, S, 0, 1, 2)
    bench.do(SessionClosed(A))
    bench.commit(0, s7=2)
    bench.do(RetireStreams())
    return bench


# What the gateway decides


def test_a_stream_that_is_idle_is_retired_and_comes_back_with_its_position() -> None:
    bench = retired_bench()
    assert S not in bench.state.registry
    assert bench.state.snapshot.streams == {}
    assert len(bench.state.retired) == 1
    bench.hello(B)
    assert bench.notify(B, S) == NotifyAck(True, S, 2)
    bench.message(B, S, 1, 2, 3)
    assert bench.ids == [0, 1, 2, 3], "what had come before is a duplicate"
    bench.commit(1, s7=3)
    assert bench.state.snapshot.streams == {S: Position("stream 7", 3)}
    assert len(bench.state.retired) == 0, "the snapshot has it again"


def test_a_stream_is_not_retired_before_its_age_nor_while_it_is_open_or_not_committed() -> None:
    state = GatewayState(Limits(streams_retire_after_s=60))
    for session in (A, B):
        state.handle(SessionOpened(session), 0.0)
        state.handle(FrameReceived(session, HELLO), 0.0)
        state.handle(FrameReceived(session, Notify(session, "", 0)), 0.0)
        state.handle(FrameReceived(session, Messages.of([session], [0], [0], [b""], [b""])), 0.0)
    state.handle(SessionClosed(A), 1.0)
    assert state.handle(RetireStreams(), 100.0) == [], "nothing is committed"
    (write,) = state.handle(EpochCommitted(1, 0, 2, {A: 0, B: 0}), 110.0)
    assert isinstance(write, WriteSnapshot)
    state.handle(SnapshotWritten(write.snapshot), 110.0)
    assert state.handle(RetireStreams(), 169.0) == []
    (write,) = state.handle(RetireStreams(), 171.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    assert write.retiring.streams == {A: 0}
    assert list(write.snapshot.streams) == [B], "a session has it open"


def test_when_there_are_nearly_too_many_the_longest_idle_are_retired_at_once() -> None:
    bench = Bench(Limits(credits_max=1000, streams_max=16))
    bench.hello(A)
    for stream_id in range(13):
        assert bench.notify(A, stream_id).success
        bench.message(A, stream_id, 0)
        if stream_id == 5:
            bench.do(SessionClosed(A))
            bench.commit(0, **{f"s{one}": 0 for one in range(6)})
            bench.hello(A)
    bench.do(SessionClosed(A))
    bench.commit(1, **{f"s{one}": 0 for one in range(6, 13)})
    bench.do(RetireStreams())
    assert [stream.stream_id for stream in bench.state.registry] == list(range(5, 13))


def test_a_stream_that_comes_back_while_it_is_being_retired_stays() -> None:
    bench = retired_bench(Limits(credits_max=100, streams_retire_after_s=60))
    (write,) = bench.state.handle(RetireStreams(), 100.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    bench.retired = write.retiring.data
    bench.hello(B)
    assert bench.notify(B, S) == NotifyAck(True, S, 2)
    bench.message(B, S, 3)
    bench.do(SnapshotWritten(write.snapshot, write.retiring))
    assert bench.state.registry[S].session == B
    # Before the next snapshot the record is in the log only, and the position among the retired only.
    bench.restart()
    assert (bench.state.registry[S].committed, bench.state.registry[S].seen) == (2, 3)
    bench.commit(1, s7=3)
    assert bench.state.snapshot.streams[S].committed == 3


def test_a_commit_that_is_told_again_brings_no_retired_or_forgotten_stream_back() -> None:
    bench = retired_bench()
    for positions in ({"s7": 2}, {"s7": 1}, {"s8": 4}):
        bench.commit(0, **positions)
        assert bench.state.snapshot.streams == {}
    assert bench.state.retired.committed(S) == 2


def test_a_commit_may_name_a_retired_stream_up_to_its_position_and_not_beyond() -> None:
    retired = RetiredStreams(Limits())
    retired.retired(retired.retiring({S: 41}, 0.0))
    registry = Registry({}, LogTail(), retired)
    check_positions({S: 41}, registry, None)
    assert news_of({S: 41, 8: 1, 9: NOTHING_COMMITTED}, registry, is_late=False) == {8: 1}
    assert news_of({S: 42, 8: 1}, registry, is_late=True) == {S: 42}
    with pytest.raises(StorageError, match="Message 42 of stream 7 was reported as committed, but the last"):
        check_positions({S: 42}, registry, None)


# Several gateways


def test_a_retired_stream_is_granted_with_its_position_to_another_gateway() -> None:
    several = Several(3)
    producer = several[1].open(S)
    several.settle()
    producer.send()
    producer.send()
    several.take()
    producer.close()
    several.settle()
    for node in several.nodes:
        node.retire()
        assert S not in node.state.registry
        assert node.snapshot.streams == {}
    several.crash(0)
    several.settle()
    other = several[2].open(S)
    several.settle()
    assert other.answers == [NotifyAck(True, S, 1)]
    other.send()
    several.take()
    several.check()
    assert several.ids(S) == [0, 1, 2]


def test_a_gateway_keeps_what_the_leader_has_not_on_disk() -> None:
    several = Several(3)
    producer = several[1].open(S)
    several.settle()
    producer.send()
    several.take(tells=lambda number: number != 0)
    producer.close()
    several.settle()
    several[1].retire()
    several.crash(0)
    several.settle()
    other = several[2].open(S)
    several.settle()
    assert other.answers == [NotifyAck(True, S, 0)]


def test_the_leader_keeps_a_stream_that_another_gateway_holds() -> None:
    several = Several(2)
    producer = several[1].open(S)
    several.settle()
    producer.send()
    several.take()
    several.settle()
    several[0].retire()
    assert S in several[0].state.registry
    producer.close()
    several.settle()
    several[0].retire()
    assert S not in several[0].state.registry


def test_a_gateway_that_does_not_lead_writes_no_file() -> None:
    several = Several(2)
    producer = several[1].open(S)
    several.settle()
    producer.send()
    producer.close()
    several.take()
    several.settle()
    several[1].retire()
    assert S not in several[1].state.registry
    assert several[1].files == {}
    assert several[1].snapshot.retired is None


# What is remembered, and for how long


def test_the_oldest_are_forgotten_above_the_limit_and_counted() -> None:
    retired = RetiredStreams(Limits(streams_retired_max=3))
    for stream_id in range(5):
        assert retired.forget(0.0, 1, 0.0) >= 1
        retired.retired(retired.retiring({stream_id: stream_id}, 0.0))
    assert [retired.committed(stream_id) for stream_id in range(5)] == [None, None, 2, 3, 4]
    assert retired.forgotten == 2
    assert retired.forget(10.0, 2, 11.0) == 0, "with other gateways, none that is younger than this: there is no room"
    assert retired.forget(11.0, 2, 11.0) == 2


def test_a_stream_is_remembered_for_its_age_by_the_time_that_the_gateway_ran() -> None:
    limits = Limits(streams_retired_age_s=100)
    retired = RetiredStreams(limits, now=5000.0)
    write = retired.retiring({S: 1}, 5010.0)
    retired.retired(write)
    mark = retired.marked(5040.0)
    assert mark is not None
    assert mark.clock_s == 40
    again = RetiredStreams(limits, mark, write.data, now=7.0)  # another clock; and the time between does not count
    again.forget(83.0, 0, 0.0)
    assert again.forgetting == set(), "a sixteenth longer, so that the file is written seldom"
    again.forget(84.0, 0, 0.0)
    again.retired(again.retiring({}, 84.0))
    assert again.committed(S) is None
    assert again.forgotten == 1


def test_at_the_limit_a_sixteenth_is_forgotten_at_once() -> None:
    """To forget writes the whole file anew. At a million, each tick would write 24 MB."""
    retired = RetiredStreams(Limits(streams_retired_max=160))
    rewritten = 0
    for stream_id in range(1000):
        assert retired.forget(0.0, 1, 0.0) >= 1
        write = retired.retiring({stream_id: stream_id}, 0.0)
        rewritten += write.position == 0
        retired.retired(write)
        assert len(retired) <= 160
    assert rewritten <= 1 + 1000 / 10
    assert retired.committed(849) is None or len(retired) > 150
    assert retired.committed(850) == 850, "no more than a sixteenth"


def test_at_its_age_a_stream_is_forgotten_with_all_that_are_as_old() -> None:
    retired = RetiredStreams(Limits(streams_retired_age_s=160))
    for second in range(160):
        retired.retired(retired.retiring({second: 1}, float(second)))
    rewritten = []
    for now in range(160, 200):
        retired.forget(float(now), 0, 0.0)
        if retired.forgetting:
            rewritten.append(len(retired.forgetting))
            retired.retired(retired.retiring({}, float(now)))
    assert rewritten == [11, 11, 11]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_is_not_forgotten_while_a_commit_may_name_it_again(is_restarted: bool) -> None:
    """A round record names positions until the driver knows that they are on disk at every gateway."""
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    write = retired.retiring({S: 100}, 0.0)
    retired.retired(write, epoch=5)
    if is_restarted:
        retired = RetiredStreams(limits, write.mark, write.data, epoch=5)
    retired.settle(4)
    assert retired.forget(1.0, 1, 0.0) == 0
    assert retired.forgetting == set()
    retired.settle(5)
    assert retired.forget(1.0, 1, 0.0) == 1
    assert retired.forgetting == {S}


def test_a_commit_that_names_a_stream_again_is_taken_although_streams_are_forgotten_at_once() -> None:
    """The driver has not heard yet that the first commit is on disk, so the second names its positions, too."""
    bench = Bench(Limits(credits_max=100, streams_retire_after_s=0, streams_retired_age_s=0))
    bench.open(A, S)
    bench.message(A, S, 0, 1, 2)
    bench.do(SessionClosed(A))
    for epoch, kept in enumerate((0, 0, 0, 1)):
        assert not bench.state.retired.forgotten
        bench.do(EpochCommitted(1, epoch, len(bench.rows), {S: 2} if not kept else {}, epochs_kept=kept))
        bench.do(RetireStreams())
        bench.do(RetireStreams())
    assert bench.state.retired.forgotten == 1


def test_a_stream_is_forgotten_only_with_a_file_on_disk_that_leaves_it_out() -> None:
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    retired.retired(retired.retiring({S: 100}, 0.0))
    retired.forget(1.0, 1, 0.0)
    write = retired.retiring({8: 1}, 1.0)
    assert retired.committed(S) == 100, "a crash now would bring it back"
    retired.retired(write)
    assert retired.committed(S) is None
    assert write.position == 0
    assert RetiredStreams(limits, write.mark, write.data).committed(S) is None


def test_a_stream_that_comes_back_is_not_forgotten_before_the_snapshot_has_it() -> None:
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    retired.retired(retired.retiring({S: 100}, 0.0))
    assert retired.returning(S) == 100
    assert retired.forget(1.0, 1, 0.0) == 0
    assert retired.forgetting == set()


def test_what_is_too_old_is_forgotten_although_nobody_is_retired() -> None:
    bench = retired_bench(Limits(credits_max=100, streams_retire_after_s=0, streams_retired_age_s=50))
    (write,) = bench.state.handle(RetireStreams(), 1000.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    assert write.retiring.data == HEADER


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["retire", "return", "kept", "restart"]), st.integers(0, 5), st.integers(0, 9)),
        max_size=40,
    )
)
def test_any_order_of_retiring_and_returning_is_read_back(steps: list[tuple[str, int, int]]) -> None:
    """As a gateway would: a stream that is back is in the snapshot before it can be retired again."""
    retired, data = RetiredStreams(Limits()), b""
    expected: dict[int, int] = {}
    hot: set[int] = set()
    for step, stream_id, committed in steps:
        if step == "retire":
            write = retired.retiring({stream_id: committed}, 0.0)
            data = data[: write.position] + write.data
            retired.retired(write)
            expected[stream_id] = committed
            hot.discard(stream_id)
        elif step == "return":
            assert retired.returning(stream_id) == expected.get(stream_id)
        elif step == "kept":
            retired.returning(stream_id)
            retired.returned([stream_id])
            expected.pop(stream_id, None)
            hot.add(stream_id)
        else:
            assert retired.mark is None or len(data) == retired.mark.length
            retired = RetiredStreams(Limits(), retired.mark, data, hot)
        assert {one: retired.committed(one) for one in range(6)} == {one: expected.get(one) for one in range(6)}


def test_a_file_with_many_entries_that_count_no_more_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procession.gateway.retired_streams.DEAD_ENTRIES_MAX", 10)
    retired = RetiredStreams(Limits())
    numbers, lengths = [], []
    for message_id in range(100):
        write = retired.retiring({S: message_id, 8: 0}, 0.0)
        retired.retired(write)
        assert write.mark is not None
        numbers.append(write.mark.number)
        lengths.append(write.mark.length)
    assert max(lengths) < len(HEADER) + ENTRY.size * 20
    assert numbers == sorted(numbers)
    assert numbers[-1] > 5


# On disk


def kept(directory: Path) -> dict[int, int | None]:
    """What a gateway that starts in a directory knows of two streams."""
    found, data = recovered(directory)
    again, renewed = recovered(directory)
    assert (again.streams, renewed) == (found.streams, data), "a start changes nothing"
    state = GatewayState(Limits(), found, retired=data)
    return {stream_id: state.registry.committed(stream_id) for stream_id in (7, 8)}


def test_at_every_point_of_a_crash_both_streams_are_remembered(tmp_path: Path) -> None:
    """The first stream is retired; then the second, and the process dies: in the middle of the write, before the
    snapshot, or behind it."""
    base = tmp_path / "base"
    base.mkdir()
    before = Snapshot(1, 3, 10, 10, {7: Position("seven", 70), 8: Position("eight", 80)})
    save_snapshot(base, before)
    retired = RetiredStreams(Limits())
    first = retired.retiring({7: 70}, 0.0)
    for size in range(len(first.data) + 1):
        directory = tmp_path / f"new-{size}"
        shutil.copytree(base, directory)
        retired_file.path_of(directory, 0).write_bytes(first.data[:size])
        assert kept(directory) == {7: 70, 8: 80}
        assert list(directory.glob(retired_file.NAMES)) == [], "nobody names it"
    retired_file.write(base, first)
    retired.retired(first)
    save_snapshot(base, replace(before, streams={8: Position("eight", 80)}, retired=first.mark))
    second = retired.retiring({8: 80}, 5.0)
    for size in range(len(second.data) + 1):
        directory = tmp_path / f"more-{size}"
        shutil.copytree(base, directory)
        with retired_file.path_of(directory, 0).open("ab") as file:
            file.write(second.data[:size])
        assert kept(directory) == {7: 70, 8: 80}
    retired_file.write(base, second)
    save_snapshot(base, replace(before, streams={}, retired=second.mark))
    assert kept(base) == {7: 70, 8: 80}
    assert len(list(base.glob(retired_file.NAMES))) == 1


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@on_a_loop
async def test_a_second_gateway_on_the_same_directory_changes_nothing(tmp_path: Path) -> None:
    write = RetiredStreams(Limits()).retiring({7: 70}, 0.0)
    retired_file.write(tmp_path, write)
    save_snapshot(tmp_path, Snapshot(1, 3, 10, 10, {}, retired=write.mark))
    first = GatewayPerformer(GatewayConfig(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="Another process holds"):
        GatewayPerformer(GatewayConfig(tmp_path))
    assert contents(tmp_path) == before
    await first.close()


def test_a_file_that_is_damaged_or_gone_is_refused_with_a_sentence(tmp_path: Path) -> None:
    retired = RetiredStreams(Limits())
    write = retired.retiring({7: 70, 8: 80}, 0.0)
    retired_file.write(tmp_path, write)
    save_snapshot(tmp_path, Snapshot(1, 3, 10, 10, {}, retired=write.mark))
    path = retired_file.path_of(tmp_path, 0)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StorageError, match="its checksum is wrong") as caught:
            recovered(tmp_path)
        assert "Restore the gateway's directory" in caught.value.next_step
    path.write_bytes(whole[:-1])
    with pytest.raises(StorageError, match=f"it has {len(whole) - 1} bytes, and {len(whole)} were written"):
        recovered(tmp_path)
    path.unlink()
    with pytest.raises(StorageError, match="it is not there"):
        recovered(tmp_path)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    for data, why in ((b"something else\n", "does not begin as"), (HEADER + b"half", "does not end where")):
        retired_file.path_of(tmp_path, 0).write_bytes(data)
        save_snapshot(tmp_path, Snapshot(retired=Mark(0, len(data), zlib.crc32(data), 0)))
        with pytest.raises(StorageError, match=why):
            recovered(tmp_path)


# Through the gateway


class Peer:
    """A session without a socket."""

    def __init__(self, gateway: GatewayPerformer) -> None:
        self._gateway = gateway
        self.frames: list[AnyFrame] = []
        self.session = gateway.join(self)
        gateway.handle(SessionOpened(self.session))
        gateway.handle(FrameReceived(self.session, HELLO))

    def send(self, frame: AnyFrame) -> None:
        if isinstance(frame, NotifyAck):
            self.frames.append(frame)

    def close(self, reason: str | None) -> None:
        raise AssertionError(reason)

    def hold(self, is_held: bool) -> None:
        pass

    def notify(self, stream_id: int) -> AnyFrame:
        self._gateway.handle(FrameReceived(self.session, Notify(stream_id, f"short stream {stream_id}", 0)))
        return self.frames[-1]

    def messages(self, stream_ids: range, message_id: int) -> None:
        count = len(stream_ids)
        columns = ([message_id] * count, [0] * count, [b""] * count, [b"payload"] * count)
        self._gateway.handle(FrameReceived(self.session, Messages.of(list(stream_ids), *columns)))

    def leave(self) -> None:
        self._gateway.leave(self.session)
        self._gateway.handle(SessionClosed(self.session))


def size_of(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.parametrize("streams", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
@on_a_loop
async def test_many_short_streams_leave_small_files_and_keep_their_positions(tmp_path: Path, streams: int) -> None:
    """Streams of one record, each opened, sent, left and committed, with room for a twelfth of them."""
    each = streams // 40
    limits = Limits(credits_max=1 << 24, streams_max=streams // 12)
    config = GatewayConfig(tmp_path, listen="127.0.0.1:0", limits=limits, ack_interval_s=3600)
    server = GatewayServer(config)
    await server.start()
    gateway = server.gateway
    sizes = []
    for epoch in range(streams // each):
        producer, opened = Peer(gateway), range(epoch * each, (epoch + 1) * each)
        for stream_id in opened:
            assert producer.notify(stream_id) == NotifyAck(True, stream_id, NOTHING_COMMITTED)
        producer.messages(opened, epoch)
        producer.leave()
        end = await gateway.offer(1, epoch * each, 1 << 30, 1 << 40)
        await gateway.commit(EpochCommitted(1, epoch, end, dict.fromkeys(opened, epoch)))
        await gateway.retire()
        sizes.append(size_of(tmp_path / SNAPSHOT))
        assert len(gateway.state.registry) <= limits.streams_max
    assert max(sizes) < 100 * limits.streams_max
    status = gateway.status()
    assert status["streams_total"] + status["streams_retired"] == streams
    assert status["streams_retired"] > streams - limits.streams_max
    mark = gateway.state.snapshot.retired
    assert mark is not None
    assert size_of(retired_file.path_of(tmp_path, mark.number)) <= len(HEADER) + ENTRY.size * streams
    await server.stop()

    server = GatewayServer(config)
    await server.start()
    server.gateway.confirm()
    producer = Peer(server.gateway)
    for stream_id in range(0, streams, 997):
        assert producer.notify(stream_id) == NotifyAck(True, stream_id, stream_id // each)
    producer.leave()
    await server.stop()


# In a process of its own


def leave_one_stream(gateway: GatewayProcess, before_it_goes: Callable[[], object] = lambda: None) -> None:
    """A producer sends on a stream, hears of the commit, and goes."""
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        assert producer.notify(S).success
        producer.messages(S, range(10))
        while (end := control.offer(1, 0, ALL, ALL).end) < 10:
            pass
        control.commit(1, 0, end, {S: 9})
        producer.wait_committed(S, 9)
        before_it_goes()


def point_of_reference(gateway: GatewayProcess) -> int:
    with Producer(gateway.listen) as producer:
        producer.hello()
        answer = producer.notify(S)
        assert answer.success
        return answer.point_of_reference


def test_a_retired_stream_is_counted_and_goes_on_after_a_kill(gateway_process: Make, tmp_path: Path) -> None:
    gateway = gateway_process(limits={"streams_retire_after_s": 0}, ack_interval_s=0.05, metrics="127.0.0.1:0").start()
    leave_one_stream(gateway)
    with gateway.client() as control:
        while not control.status()["streams_retired"]:
            pass
        assert control.status()["streams"] == []
    shown = commands.run("streams", "--dir", gateway.directory, cwd=tmp_path)
    assert shown.stdout.splitlines()[-1] == "0 streams, lag 0 records, 0 records/s, 1 more retired"
    told = commands.run("streams", "--dir", gateway.directory, "--json", cwd=tmp_path)
    assert json.loads(told.stdout) == {"streams": [], "retired": 1}
    address = json.loads((gateway.directory / "gateway.json").read_text())["metrics"]
    with urlopen(f"http://{address}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'procession_gateway_streams_retired{gateway="gateway-0"} 1.0' in metrics
    assert 'procession_gateway_streams_forgotten_total{gateway="gateway-0"} 0.0' in metrics
    gateway.kill()
    gateway.start()
    assert point_of_reference(gateway) == 9


@pytest.mark.parametrize("fault", ["gateway:before-retired", "gateway:after-retired", "gateway:before-ack@3"])
def test_a_gateway_that_is_killed_while_it_retires_a_stream_remembers_it(gateway_process: Make, fault: str) -> None:
    gateway = gateway_process(limits={"streams_retire_after_s": 0}, ack_interval_s=0.05).start(fault)
    leave_one_stream(gateway)
    gateway.wait()
    gateway.start()
    assert point_of_reference(gateway) == 9


def test_a_sync_that_fails_while_a_stream_is_retired_ends_the_gateway(
    gateway_process: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    monkeypatch.setenv("PROCESSION_FAULT_FILE", str(fault))
    gateway = gateway_process(limits={"streams_retire_after_s": 60, "streams_max": 1}, ack_interval_s=0.05).start()
    # The next sync is that of the retired streams, when the producer is gone.
    leave_one_stream(gateway, lambda: fault.write_text("disk:sync"))
    status, said = gateway.wait()
    assert status == 1
    assert "retired-0000000000.streams" in said
    fault.unlink()
    gateway.start()
    assert point_of_reference(gateway) == 9


def test_streams_that_are_forgotten_are_told_and_begin_anew(gateway_process: Make) -> None:
    limits = {"streams_retire_after_s": 0, "streams_retired_max": 1, "streams_retired_age_s": 0}
    gateway = gateway_process(limits=limits, ack_interval_s=0.05).start()
    leave_one_stream(gateway)
    with gateway.client() as control:
        while not control.status()["streams_forgotten"]:
            pass
    assert point_of_reference(gateway) == NOTHING_COMMITTED
    assert "gateway.retired_streams_forgotten" in gateway.log.read_text()
