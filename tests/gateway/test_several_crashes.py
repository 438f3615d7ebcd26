"""Three gateways, twenty producers with ten streams each, while gateways and drivers are killed, join and leave."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import pytest

from procession.connectors.generator_source import GeneratorSource, Recipe
from procession.errors import ProcessionError
from procession.gateway.members import MemberStatus
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.gateways import Gateways

PRODUCERS = 20
STREAMS = 10
KINDS = {"kill": 4, "leave": 2, "driver": 2, "join": 1}
"""What happens, and how often."""
FOURTH = 3
"""The gateway that is not there at the beginning."""
RATE = 150.0
"""Records a second, of each producer."""
PATIENCE_S = 180.0
"""How long nothing at all may be acknowledged, after the last crash. It ends a hang, and measures nothing."""


class Producers:
    """All sources, in a loop of their own. Each has a rival that wants the same streams, at another gateway."""

    def __init__(self, gateways: Gateways, seconds: float) -> None:
        self.records = max(5, int(RATE * seconds / STREAMS))
        addresses = [gateway.listen for gateway in gateways.all]
        self.clients = [
            self._client(number, [addresses[(number + turn + rival) % 3] for turn in range(3)], rival)
            for number in range(PRODUCERS)
            for rival in range(2 if number < 3 else 1)
        ]
        self.thread = threading.Thread(target=asyncio.run, args=(self._all(),), daemon=True)
        self.error: BaseException | None = None

    def _client(self, number: int, addresses: list[str], rival: int) -> SourceClient:
        source = GeneratorSource(Recipe(self.records, size=24, seed=number, streams=STREAMS))
        options = SourceOptions(
            "crashes", f"producer {number}.{rival}", rate=RATE, backoff_limit_s=0.3, complaints_max=10_000
        )
        return SourceClient(source, ",".join(addresses), options)

    async def _all(self) -> None:
        try:
            await asyncio.gather(*(client.run() for client in self.clients))
        except BaseException as error:
            self.error = error

    @property
    def acknowledged(self) -> int:
        return sum(client.report().acknowledged for client in self.clients)

    def describe(self) -> str:
        return "\n".join(str(client.report()) for client in self.clients if client.report().state != "done")


def is_let_go(gateways: Gateways, gateway: GatewayProcess, chance: random.Random) -> bool:
    """Ask for it to leave, wait until it is gone, and start it again. False if it has not left: it leads, was away, or
    was killed when it had just left."""
    try:
        with gateways[0].client(5.0) as client:
            client.leave(gateway.directory.name)
    except ProcessionError:
        return False
    if chance.random() < 0.3:
        gateway.kill()
        gateway.start()
    gateways.until(lambda: has_left(gateways, gateway), f"{gateway.directory} to leave")
    if gateway.process.poll() is None:
        return False
    assert gateway.process.returncode == 0, gateways.describe()
    gateway.start()
    return True


def has_left(gateways: Gateways, gateway: GatewayProcess) -> bool:
    """Whether a gateway that was let go has gone. One that was killed when it had just left is back, and here."""
    standing = {one["name"]: one["standing"] for one in gateways.listed()}
    return gateway.process.poll() is not None or standing.get(gateway.directory.name) == MemberStatus.HERE


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seconds", "seed"),
    [(6.0, 1), pytest.param(60.0, 2, marks=pytest.mark.slow), pytest.param(300.0, 3, marks=pytest.mark.slow)],
)
def test_every_stream_arrives_once_and_in_order_whatever_dies_joins_or_leaves(
    tmp_path: Path, seconds: float, seed: int
) -> None:
    chance = random.Random(seed)
    missing = chance.sample(sorted(KINDS), len(KINDS))
    """What has not happened yet: everything must, however slow the machine is."""
    with Gateways(tmp_path, 3, ack_interval_s=0.1, link_interval_s=0.1, link_timeout_s=2.0) as gateways:
        producers = Producers(gateways, seconds)
        epoch_reader = gateways.epoch_reader().begin()
        producers.thread.start()
        deadline = time.monotonic() + seconds
        happened: list[tuple[str, int]] = []
        while missing or time.monotonic() < deadline:
            assert time.monotonic() < deadline + PATIENCE_S, f"{missing} after {happened}\n{gateways.describe()}"
            time.sleep(chance.uniform(0.1, 0.8))
            what = missing[0] if missing else chance.choices(list(KINDS), list(KINDS.values()))[0]
            number = chance.randrange(len(gateways.all))
            gateway = gateways[number]
            if what == "driver":
                epoch_reader.finish()
                epoch_reader = epoch_reader.successor().begin()
                gateways.epoch_readers.append(epoch_reader)
            elif what == "kill":
                gateway.kill()
                time.sleep(chance.uniform(0.0, 0.5))
                gateway.start()
            elif what == "join":
                if len(gateways.all) > FOURTH:
                    continue  # it has joined, and is killed and let go as the others are
                gateways.all.append(gateways.make(FOURTH))
                gateways[FOURTH].start()
                gateways.until(lambda: f"gateway-{FOURTH}" in gateways.connected(), "the fourth to join")
            elif not is_let_go(gateways, gateway, chance):
                continue
            happened.append((what, number))
            missing = [one for one in missing if one != what]
        before = -1
        while producers.thread.is_alive() and (now := producers.acknowledged) > before:
            before = now
            producers.thread.join(PATIENCE_S)
        assert not producers.thread.is_alive(), f"{happened}\n{producers.describe()}\n{gateways.describe()}"
        assert producers.error is None, producers.error
        epoch_reader.finish()
        gateways.until(lambda: not epoch_reader.take() and epoch_reader.tell(), "the last epoch")
        ids = epoch_reader.ids
        assert len(ids) == PRODUCERS * STREAMS
        for stream_id, found in ids.items():
            assert found == list(range(producers.records)), f"stream {stream_id} after {happened}"
        gateways.until(lambda: set(gateways.held().values()) == {0}, "all streams to be given up")
        everybody = {f"gateway-{number}" for number in range(FOURTH + 1)}
        gateways.until(lambda: set(gateways.connected()) == everybody, "all four to be linked")
        assert {what for what, _ in happened} == set(KINDS)
