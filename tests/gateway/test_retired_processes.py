"""Retired streams in running gateways: many streams, kills, failed syncs, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from procession.gateway import retired_file
from procession.gateway.gateway_directory import SNAPSHOT
from procession.gateway.gateway_events import (
    EpochCommitted,
    FrameReceived,
    SessionClosed,
    SessionOpened,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.performer import GatewayPerformer
from procession.gateway.retired_streams import ENTRY, HEADER
from procession.gateway.server import GatewayServer
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import NOTHING_COMMITTED, Messages, Notify, NotifyAck
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer
from tests.gateway.several import HELLO
from tests.sdk.loops import on_a_loop
from tests.walk import commands

S = 7
ALL = 2**40
Make = Callable[..., GatewayProcess]


class Peer:
    """A producer's session without a socket."""

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
    """Each stream has one record and is opened, sent, left and committed. There is space for a twelfth of them."""
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


def leave_one_stream(gateway: GatewayProcess, before_it_goes: Callable[[], object] = lambda: None) -> None:
    """Send on one stream, wait for the commit, and close the session."""
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


def test_a_retired_stream_is_counted_and_continues_after_a_kill(gateway_process: Make, tmp_path: Path) -> None:
    gateway = gateway_process(limits={"streams_retire_after_s": 0}, ack_interval_s=0.05, metrics="127.0.0.1:0").start()
    leave_one_stream(gateway)
    with gateway.client() as control:
        while not control.status()["streams_retired"]:
            pass
        assert control.status()["streams"] == []
    shown = commands.run("streams", "--dir", gateway.directory, cwd=tmp_path)
    assert shown.stdout.splitlines()[-1] == "0 streams, lag 0 records, 0 records/s, 1 more retired"
    result = commands.run("streams", "--dir", gateway.directory, "--json", cwd=tmp_path)
    assert json.loads(result.stdout) == {"streams": [], "retired": 1}
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
    # After the producer has left, the next sync is that of the retired streams.
    leave_one_stream(gateway, lambda: fault.write_text("disk:sync"))
    status, output = gateway.wait()
    assert status == 1
    assert "retired-0000000000.streams" in output
    fault.unlink()
    gateway.start()
    assert point_of_reference(gateway) == 9


def test_forgotten_streams_are_reported_and_start_over(gateway_process: Make) -> None:
    limits = {"streams_retire_after_s": 0, "streams_retired_max": 1, "streams_retired_age_s": 0}
    gateway = gateway_process(limits=limits, ack_interval_s=0.05).start()
    leave_one_stream(gateway)
    with gateway.client() as control:
        while not control.status()["streams_forgotten"]:
            pass
    assert point_of_reference(gateway) == NOTHING_COMMITTED
    assert "gateway.retired_streams_forgotten" in gateway.log.read_text()
