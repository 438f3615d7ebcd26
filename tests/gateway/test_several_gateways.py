"""Several real gateway processes for one pipeline: which gateway holds a stream, and what a death or a departure
changes."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from procession.cli.streams_table import ask
from procession.errors import ConfigError
from procession.storage.log_ranges import sequences
from procession.wire.messages import Ack, Eos, Notify, NotifyAck, Restart
from tests.gateway.gateways import Gateways
from tests.gateway.producer import TIMEOUT_S, Producer


@pytest.fixture
def gateways(tmp_path: Path) -> Gateways:
    return Gateways(tmp_path, 3, ack_interval_s=0.05, link_interval_s=0.05)


def opened(gateways: Gateways, number: int, stream_id: int) -> tuple[Producer, int]:
    """A producer that has the stream, however often it must ask, and the point of reference that it was given."""
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


def test_a_stream_moves_when_all_that_its_holder_took_is_committed_and_not_before(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader()
        first, _ = opened(gateways, 1, 7)
        first.messages(7, range(10))
        with Producer(gateways[2].listen) as other:
            other.hello()
            assert not other.notify(7).success, "it is open elsewhere"
            gateways.until(lambda: epoch_reader.has(7, 10), "ten records")
            first.messages(7, range(10, 15))
            gateways.until(lambda: gateways[1].client().status()["next_sequence"] == 15, "fifteen records")
            first.socket.close()
            assert not other.notify(7).success, "what came of it is not committed"
        gateways.until(lambda: epoch_reader.has(7, 15), "fifteen records")
        second, point_of_reference = opened(gateways, 2, 7)
        assert point_of_reference == 14
        second.messages(7, range(15, 20))
        gateways.until(lambda: epoch_reader.has(7, 20), "twenty records")
        assert epoch_reader.ids[7] == list(range(20))
        assert sequences(epoch_reader.offsets) == {"gateway-0": 0, "gateway-1": 15, "gateway-2": 5}
        second.socket.close()


def test_of_those_that_fight_for_streams_all_at_once_one_has_each(gateways: Gateways) -> None:
    streams = range(100, 150)
    with gateways, ThreadPoolExecutor(6) as threads:
        producers = [Producer(gateways[number % 3].listen) for number in range(6)]
        for producer in producers:
            producer.hello()
        all_at_once = threading.Barrier(len(producers))

        def ask(number: int) -> None:
            # Each begins with another stream, so that none is the first everywhere.
            own = [streams[(place + number * 8) % len(streams)] for place in range(len(streams))]
            all_at_once.wait(TIMEOUT_S)
            producers[number].send(*(Notify(stream_id, f"stream {stream_id}", 0) for stream_id in own))

        list(threads.map(ask, range(len(producers))))
        answers = [producer.expect(NotifyAck) for producer in producers for _ in streams]
        assert Counter(answer.stream_id for answer in answers) == dict.fromkeys(streams, len(producers))
        granted = Counter(answer.stream_id for answer in answers if answer.success)
        assert granted == dict.fromkeys(streams, 1)
        for producer in producers:
            producer.socket.close()
        gateways.until(lambda: sum(gateways.held().values()) == 0, "all streams to be given up")


def test_a_restarted_leader_loses_no_stream_and_grants_none_before_all_members_report(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader()
        holder, _ = opened(gateways, 1, 7)
        holder.messages(7, range(5))
        gateways[2].kill()
        gateways[0].kill()
        holder.messages(7, range(5, 10))
        with Producer(gateways[1].listen) as other:
            other.hello()
            assert not other.notify(8).success, "there is nobody to grant it"
            gateways[0].start()
            gateways.until(lambda: "gateway-1" in gateways.connected(), "the first two to meet again")
            assert not other.notify(8).success, "the third has not said what it holds"
        gateways[2].start()
        third, _ = opened(gateways, 2, 8)
        with Producer(gateways[0].listen) as other:
            other.hello()
            assert not other.notify(7).success
            assert not other.notify(8).success
        gateways.until(lambda: epoch_reader.has(7, 10), "ten records")
        assert epoch_reader.ids[7] == list(range(10))
        holder.socket.close()
        third.socket.close()


def test_a_gateway_that_dies_holds_its_streams_until_it_is_back(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader()
        holder, _ = opened(gateways, 2, 7)
        holder.messages(7, range(5))
        gateways.until(lambda: gateways[2].client().status()["next_sequence"] == 5, "five records")
        with gateways[2].client() as client:
            client.offer(epoch_reader.checkpoint.fence, 0, 100, 10_000)  # on disk now
        gateways[2].kill()
        holder.socket.close()
        with Producer(gateways[1].listen) as other:
            other.hello()
            assert other.notify(8).success, "what it does not hold goes on"
            assert not other.notify(7).success
        gateways[2].start()
        gateways.until(lambda: epoch_reader.has(7, 5), "five records")
        second, point_of_reference = opened(gateways, 0, 7)
        assert point_of_reference == 4
        second.socket.close()


def test_one_that_leaves_sends_its_producers_on_and_comes_back_under_the_same_name(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader().begin()
        producer, _ = opened(gateways, 2, 7)
        producer.messages(7, range(5))
        with gateways[0].client() as client, pytest.raises(ConfigError, match="leads, and cannot leave"):
            client.leave("gateway-0")
        with gateways[0].client() as client:
            client.leave("gateway-2")
        address = producer.expect(Restart).address
        assert address in (gateways[0].listen, gateways[1].listen)
        producer.socket.close()
        assert gateways[2].wait()[0] == 0, "it ends by itself, when all is committed"
        assert [gateway["name"] for gateway in gateways.listed()] == ["gateway-0", "gateway-1"]
        moved, point_of_reference = opened(gateways, 1, 7)
        moved.messages(7, range(point_of_reference + 1, 10))
        moved.send(Eos(7))
        gateways[2].start()
        gateways.until(lambda: "gateway-2" in gateways.connected(), "the same name again")
        again, point_of_reference = opened(gateways, 2, 7)
        assert point_of_reference == 9
        again.messages(7, range(10, 15))
        gateways.until(lambda: len(epoch_reader.ids[7]) == 15, "fifteen records")
        assert epoch_reader.ids[7] == list(range(15))
        moved.socket.close()
        again.socket.close()


def test_a_stream_whose_holder_has_left_keeps_its_name_and_its_row(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader().begin()
        producer, _ = opened(gateways, 2, 7)
        (named,) = [row["name"] for row in ask(gateways[2].directory, cookie=b"", timeout_s=TIMEOUT_S)]
        producer.messages(7, range(5))
        gateways.until(lambda: len(epoch_reader.ids.get(7, [])) == 5, "five records")
        with gateways[0].client() as client:
            client.leave("gateway-2")
        producer.expect(Restart)
        producer.socket.close()
        assert gateways[2].wait()[0] == 0
        (row,) = ask(gateways[0].directory, cookie=b"", timeout_s=TIMEOUT_S)
        assert named
        assert (row["id"], row["name"], row["committed"]) == (7, named, 4)


def test_a_leader_that_was_suspended_uses_only_the_last_link_of_each_gateway(tmp_path: Path) -> None:
    with Gateways(tmp_path, 2, ack_interval_s=0.05, link_interval_s=0.05, link_timeout_s=0.5) as gateways:
        holder, _ = opened(gateways, 1, 7)
        os.kill(gateways[0].process.pid, signal.SIGSTOP)
        read_log = gateways[1].log.read_text
        gateways.until(lambda: "reason=not found" in read_log().replace("'", ""), "the link to be given up")
        with Producer(gateways[1].listen) as other:
            other.hello()
            for _ in range(20):  # links that are begun and given up meanwhile
                other.expect(Ack)
            assert not other.notify(8).success
            os.kill(gateways[0].process.pid, signal.SIGCONT)
            gateways.until(lambda: other.notify(8).success or not other.expect(Ack), "the leader to grant again")
        with Producer(gateways[0].listen) as other:
            other.hello()
            assert not other.notify(7).success, "it never stopped being open elsewhere"
        holder.socket.close()


def test_another_directory_is_not_taken_for_one_that_is_known(gateways: Gateways) -> None:
    with gateways:
        stranger = gateways.make(3, name="gateway-2")
        gateways.all.append(stranger)
        stranger.start()
        status, output = stranger.wait()
        assert status == 1
        assert "There is already a gateway 'gateway-2'" in output
        unnamed = gateways.make(4, name="")
        gateways.all.append(unnamed)
        unnamed.start()
        gateways.until(lambda: "gateway-3" in gateways.connected(), "it to be given the next name")
