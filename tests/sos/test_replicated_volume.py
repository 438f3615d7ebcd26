"""A volume on several object services, over sockets: lost disks, services that come and go, and successors."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError, FencedError
from procession.sos import replicated_volume
from procession.sos.replicated_volume import ReplicaOptions, ReplicatedVolume
from procession.sos.sos_server import SosConfig, SosServer, open_store

SECRET = b"secret"


class Services:
    """Object services in this process, each with its own directory and address."""

    def __init__(self, place: Path, count: int = 3) -> None:
        self._place = place
        self.addresses = [Address("127.0.0.1", 0)] * count
        self._serving: dict[int, asyncio.Task[None]] = {}

    async def start(self, number: int) -> None:
        config = SosConfig(self._place / str(number), "", SECRET, connections_max=4)
        listener = listening_socket(self.addresses[number])
        self.addresses[number] = address_of(listener)
        self._serving[number] = asyncio.ensure_future(SosServer(config, open_store(config)).serve(listener))

    async def stop(self, number: int, *, is_lost: bool = False) -> None:
        """Stop a service. If `is_lost`, delete its disk, too."""
        if task := self._serving.pop(number, None):
            task.cancel()
            await asyncio.wait([task])
        if is_lost:
            shutil.rmtree(self._place / str(number))

    async def stop_all(self) -> None:
        for number in list(self._serving):
            await self.stop(number)

    def options(self, write_quorum: int = 2, **more: float) -> ReplicaOptions:
        return ReplicaOptions(
            tuple(self.addresses),
            write_quorum,
            SECRET,
            reconnect_s=0.02,
            reconnect_max_s=0.1,
            **more,  # type: ignore[arg-type]
        )


@asynccontextmanager
async def services(place: Path, count: int = 3) -> AsyncIterator[Services]:
    made = Services(place, count)
    for number in range(count):
        await made.start(number)
    try:
        yield made
    finally:
        await made.stop_all()


@asynccontextmanager
async def opened(options: ReplicaOptions, **more: bool) -> AsyncIterator[ReplicatedVolume]:
    volume = ReplicatedVolume("v", options, **more)
    try:
        await volume.open()
        yield volume
    finally:
        await volume.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


async def found(volume: ReplicatedVolume) -> list[bytes]:
    return [data async for _, data in volume.history()]


async def complete(volume: ReplicatedVolume) -> None:
    """Wait until no replica is missing."""
    while volume.missing:  # noqa: ASYNC110  (the volume goes on meanwhile)
        await asyncio.sleep(0.01)


def test_the_next_writer_has_the_acknowledged_appends(tmp_path: Path) -> None:
    async def work() -> None:
        async with services(tmp_path) as made:
            payloads = [b"%d" % number for number in range(500)]
            async with opened(made.options()) as volume:
                for payload in payloads[:-1]:
                    volume.append(payload)
                await volume.write(payloads[-1])
                assert volume.acknowledged == len(payloads)
            async with opened(made.options()) as volume:
                assert await found(volume) == payloads

    run(work)


@pytest.mark.parametrize("lost", range(3))
def test_a_machine_that_is_lost_is_filled_again_and_then_another_may_be_lost(tmp_path: Path, lost: int) -> None:
    async def work() -> None:
        async with services(tmp_path) as made:
            async with opened(made.options(roll_bytes=1000)) as volume:
                await volume.write(b"first")
                await made.stop(lost, is_lost=True)
                for number in range(100):
                    volume.append(b"%d" % number * 20)
                await volume.write(b"while one is lost")
                await made.start(lost)
                await complete(volume)
                await volume.write(b"after")
                expected = [b"first", *(b"%d" % number * 20 for number in range(100)), b"while one is lost", b"after"]
            await made.stop((lost + 1) % 3, is_lost=True)
            async with opened(made.options()) as volume:
                assert await found(volume) == expected
                await made.start((lost + 1) % 3)
                await volume.write(b"last")

    run(work)


def test_a_later_writer_fences_the_earlier_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with services(tmp_path) as made, opened(made.options()) as old:
            await old.write(b"a")
            async with opened(made.options()) as new:
                assert await found(new) == [b"a"]
                with pytest.raises(FencedError):
                    await old.write(b"b")
                with pytest.raises(FencedError):
                    old.append(b"c")
                await new.write(b"d")

    run(work)


def test_without_the_quorum_a_writer_waits_and_names_the_missing_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated_volume, "WARN_AFTER_S", 0.1)
    told: list[str] = []

    async def work() -> None:
        async with services(tmp_path) as made, opened(made.options()) as volume:
            await complete(volume)
            await made.stop(0)
            await made.stop(1)
            writing = asyncio.ensure_future(volume.write(b"x", told.append))
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not writing.done()
            assert str(made.addresses[0]) in told[0]
            assert str(made.addresses[1]) in told[0]
            assert str(made.addresses[2]) not in told[0]
            await made.start(1)
            await writing

    run(work)


def test_objects_are_deleted_below_a_mark(tmp_path: Path) -> None:
    async def work() -> None:
        async with services(tmp_path) as made:
            async with opened(made.options()) as volume:
                await volume.write(b"old")
                number = await volume.roll()
                await volume.write(b"new")
                volume.retain(number)
                await volume.write(b"newer")
            async with opened(made.options()) as volume:
                assert await found(volume) == [b"new", b"newer"]

    run(work)
    kept = list(tmp_path.glob("*/volumes/v/00000000000000000001.object"))
    assert len(kept) <= 1, "the quorum has deleted it; the third replica may lag"


def test_a_replica_that_refuses_the_volume_costs_no_connections(tmp_path: Path) -> None:
    async def work() -> None:
        async with services(tmp_path) as made, opened(made.options()) as volume:
            await complete(volume)
            await made.stop(0)
            record = tmp_path / "0" / "volumes" / "v" / "volume.json"
            await asyncio.to_thread(record.write_text, "{")
            await made.start(0)
            for _ in range(100):
                await asyncio.sleep(0.01)
            assert "damaged" in volume.missing[0]
            await made.stop(0)
            await asyncio.to_thread(shutil.rmtree, record.parent)
            await made.start(0)
            await complete(volume)

    run(work)


def test_a_restore_does_not_begin_a_volume(tmp_path: Path) -> None:
    async def work() -> None:
        async with services(tmp_path) as made:
            volume = ReplicatedVolume("v", made.options(), may_begin=False)
            with pytest.raises(ConfigError, match="no volume v"):
                await volume.open()
            await volume.close()

    run(work)


def test_the_data_that_waits_for_the_quorum_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_volume, "PENDING_BYTES_MAX", 10)

    async def work() -> None:
        async with services(tmp_path) as made, opened(made.options()) as volume:
            await made.stop(0)
            await made.stop(1)
            volume.append(b"x" * 11, is_barrier=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await volume.room()
            await made.start(1)
            await volume.room()

    run(work)


def test_options_that_cannot_be_safe_are_refused() -> None:
    one, two = Address("a", 1), Address("b", 1)
    for addresses, write_quorum in (((one, one), 2), ((one, two), 1), ((), 1)):
        with pytest.raises(ConfigError):
            ReplicatedVolume("v", ReplicaOptions(addresses, write_quorum))
