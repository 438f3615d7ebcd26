"""Real gateway processes, one of which is lost for good: a driver continues without it, and its streams continue at the
other gateways from their committed positions."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from procession.commit.abandoned_gateways import AbandonedGateway
from procession.commit.log_locations import LogLocations, abandon
from procession.driver.abandonment import remaining, unreported, watch_abandoned
from procession.errors import ProcessionError, RoundError
from procession.gateway.members import Member
from procession.storage.log_ranges import sequences
from procession.wire.messages import Ack, Restart
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateways import Gateways
from tests.gateway.producer import Producer


@pytest.fixture
def gateways(tmp_path: Path) -> Gateways:
    return Gateways(tmp_path, 3, ack_interval_s=0.05, link_interval_s=0.05)


def opened(gateways: Gateways, number: int, stream_id: int) -> tuple[Producer, int]:
    """Open a stream, however often the producer must ask. Return it with its point of reference."""
    producer = Producer(gateways[number].listen)
    producer.hello()
    given = []

    def is_granted() -> bool:
        answer = producer.notify(stream_id)
        given.append(answer.point_of_reference)
        if not answer.success:
            producer.expect(Ack)
        return answer.success

    gateways.until(is_granted, f"stream {stream_id} to be granted at gateway-{number}")
    return producer, given[-1]


def offer(reader: EpochReader) -> dict[str, int]:
    """Begin an epoch as Spark does, and decide nothing. Return its end."""
    ends = reader.feed.next_ends(reader.offsets, reader.feed.records_max)
    folder = reader.checkpoint.directory / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(reader.epoch + 1)).write_text(f"v1\n{{}}\n{json.dumps(ends)}")
    return sequences(ends)


def identity_of(gateways: Gateways, name: str) -> str:
    return LogLocations(gateways.work / "checkpoint").all()[name].identity


def test_the_streams_of_a_lost_gateway_continue_from_what_was_committed_and_not_from_what_was_offered(
    gateways: Gateways, tmp_path: Path
) -> None:
    with gateways:
        reader = gateways.epoch_reader()
        lost, _ = opened(gateways, 2, 7)
        stays, _ = opened(gateways, 1, 8)
        lost.messages(7, range(10))
        gateways.until(lambda: reader.has(7, 10), "ten records")
        lost.messages(7, range(10, 15))
        stays.messages(8, range(5))
        gateways.until(lambda: gateways[2].client().status()["next_sequence"] == 15, "fifteen records")
        gateways.until(lambda: gateways[1].client().status()["next_sequence"] == 5, "five records")
        gateways.until(lambda: offer(reader).get("gateway-2") == 15, "an epoch with all of them")
        gateways[2].kill()
        lost.socket.close()
        shutil.move(gateways[2].directory, tmp_path / "kept")
        with Producer(gateways[0].listen) as other:
            other.hello()
            assert not other.notify(7).success, "nobody has said that it is lost"
        waiting = reader.successor()
        with pytest.raises(RoundError, match="gateway-2 does not answer"):
            waiting.word.raise_fence(waiting.checkpoint)
        assert waiting.checkpoint.log.offered == 1
        abandon(waiting.checkpoint.root, "gateway-2", identity_of(gateways, "gateway-2"))
        with Producer(gateways[0].listen) as other:
            other.hello()
            assert not other.notify(7).success, "no driver has carried it out"
        successor = waiting.successor()
        gateways.epoch_readers = [successor]
        assert successor.checkpoint.log.offered == 0, "what is not decided is void"
        successor.word.raise_fence(successor.checkpoint)
        assert [gateway["name"] for gateway in gateways.listed()] == ["gateway-0", "gateway-1"]
        moved, point_of_reference = opened(gateways, 0, 7)
        assert point_of_reference == 9
        moved.messages(7, range(10, 20))
        gateways.until(lambda: successor.has(7, 20), "twenty records")
        assert successor.ids == {7: list(range(20)), 8: list(range(5))}
        assert sequences(successor.offsets)["gateway-2"] == 10
        # The directory comes back.
        shutil.move(tmp_path / "kept", gateways[2].directory)
        gateways[2].start(is_confirmed=False)
        assert gateways[2].wait()[0] != 0
        assert "was abandoned" in gateways[2].log.read_text()
        assert not successor.take()
        moved.socket.close()
        stays.socket.close()


def test_a_gateway_that_only_seemed_to_be_lost_ends_and_sends_its_producers_away(gateways: Gateways) -> None:
    with gateways:
        reader = gateways.epoch_reader()
        producer, _ = opened(gateways, 2, 7)
        producer.messages(7, range(5))
        gateways.until(lambda: reader.has(7, 5), "five records")
        abandon(reader.checkpoint.root, "gateway-2", identity_of(gateways, "gateway-2"))
        producer.messages(7, range(5, 10))
        gateways.until(lambda: reader.has(7, 10), "ten records: the driver that runs has claimed before")
        successor = reader.successor()
        gateways.epoch_readers = [successor]
        successor.word.raise_fence(successor.checkpoint)
        producer.expect(Restart)
        producer.socket.close()
        assert gateways[2].wait()[0] != 0
        moved, point_of_reference = opened(gateways, 1, 7)
        assert point_of_reference == 9
        moved.messages(7, range(10, 12))
        gateways.until(lambda: successor.has(7, 12), "twelve records")
        assert successor.ids[7] == list(range(12))
        moved.socket.close()


def test_the_leader_gets_the_last_commit_before_streams_continue(gateways: Gateways) -> None:
    """It decides where they continue. The driver that has committed it dies before it tells the gateways."""
    with gateways:
        reader = gateways.epoch_reader()
        lost, _ = opened(gateways, 2, 7)
        lost.messages(7, range(5))
        gateways.until(lambda: reader.take(is_told=False), "an epoch")
        count = len(reader.ids[7])
        lost.socket.close()
        gateways[2].kill()
        abandon(reader.checkpoint.root, "gateway-2", identity_of(gateways, "gateway-2"))
        successor = reader.successor()
        gateways.epoch_readers = [successor]
        successor.word.raise_fence(successor.checkpoint)
        moved, point_of_reference = opened(gateways, 1, 7)
        assert point_of_reference == count - 1
        moved.socket.close()


def test_a_leader_whose_list_is_older_is_informed_again(gateways: Gateways) -> None:
    with gateways:
        reader = gateways.epoch_reader()
        gateways.until(lambda: not reader.take() and "gateway-2" in reader.feed.places(), "all gateways")
        gateways[2].kill()
        abandon(reader.checkpoint.root, "gateway-2", identity_of(gateways, "gateway-2"))
        document = (gateways[0].directory / "gateways.json").read_bytes()
        successor = reader.successor()
        gateways.epoch_readers = [successor]
        successor.word.raise_fence(successor.checkpoint)
        assert len(gateways.listed()) == 2
        gateways[0].kill()
        (gateways[0].directory / "gateways.json").write_bytes(document)
        gateways[0].start()
        gateways.until(lambda: not successor.take() and len(gateways.listed()) == 2, "the leader's list")


def member(name: str, identity: str = "") -> Member:
    return Member(name, identity or f"of {name}", "127.0.0.1:1", "127.0.0.1:2", "directory")


def test_the_leaders_list_is_divided_by_name_and_by_directory() -> None:
    abandoned = {"gateway-1": AbandonedGateway("gateway-1", "of gateway-1", 1)}
    gateways = [member("gateway-0"), member("gateway-1", "new"), member("gateway-2", "of gateway-1"), member("b")]
    assert [gateway.name for gateway in remaining(gateways, abandoned)] == ["gateway-0", "b"]
    assert [gateway.name for gateway in unreported(gateways, abandoned)] == ["gateway-1", "gateway-2"]


def test_a_driver_that_still_reads_from_an_abandoned_gateway_ends_and_is_restarted(tmp_path: Path) -> None:
    first = EpochReader(tmp_path, tmp_path / "gateway-0").checkpoint
    abandon(tmp_path, "gateway-1", "of gateway-1")
    second = EpochReader(tmp_path, tmp_path / "gateway-0").checkpoint
    ends: list[ProcessionError] = []
    asyncio.run(watch_abandoned(first, ends.append))
    assert [error.sentence for error in ends] == ["gateway-1 was abandoned; the next driver continues without it."]
    assert not ends[0].next_step, "an error with a next step would not be restarted"

    async def polls() -> None:
        async with asyncio.timeout(0.2):
            await watch_abandoned(second, ends.append)

    with pytest.raises(TimeoutError):
        asyncio.run(polls())
    assert len(ends) == 1
