"""The sender, for plain code, against a real gateway that the test commits on, blocks and kills."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procession.errors import ConfigError, ProcessionError, RecordError
from procession.sdk import Sender, SourceOptions, Stream, send
from tests.sdk.gateways import LivingGateway, living_gateway

ORDERS = Stream.named("orders").id
PATIENCE_S = 20.0


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)  # the state of another process can only be polled


def sender(gateway: LivingGateway, **settings: Any) -> Sender:
    options = SourceOptions("test", "test", backoff_first_s=0.001, backoff_limit_s=0.05)
    return send(gateway.listen, stream="orders", **{"options": options, **settings})


def write_for_ever(out: Sender) -> None:
    while True:
        out.write(b"x" * 1000)


def test_every_record_that_is_written_is_committed_once_in_order(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        with sender(gateway) as out:
            for number in range(20_000):
                out.write(f"order {number}", key=b"k%d" % (number % 7), event_time=number)
        rows = gateway.rows(ORDERS)
        assert [row.payload for row in rows] == [b"order %d" % number for number in range(20_000)]
        assert [row.key for row in rows] == [b"k%d" % (number % 7) for number in range(20_000)]
        assert [row.event_time for row in rows] == list(range(20_000))


def test_close_waits_for_the_commit_and_wait_does_too(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        out = sender(gateway)
        out.write(b"one")
        waiting = threading.Thread(target=out.wait)
        closing = threading.Thread(target=out.close)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        gateway.let_commit()
        waiting.join(PATIENCE_S)
        assert gateway.payloads(ORDERS) == [b"one"]
        gateway.hold_commits()
        out.write(b"two")
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        gateway.let_commit()
        closing.join(PATIENCE_S)
        assert gateway.payloads(ORDERS) == [b"one", b"two"]


def test_a_record_does_not_wait_for_the_next_one(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway, sender(gateway) as out:
        for payload in (b"one", b"two"):
            out.write(payload)
            until(lambda payload=payload: gateway.payloads(ORDERS)[-1:] == [payload])


def test_write_blocks_while_too_much_is_not_committed(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        written: list[int] = []
        with sender(gateway, bytes_max=100_000) as out:

            def write_all() -> None:
                for number in range(6000):
                    out.write(b"x" * 1000)
                    written.append(number)

            writing = threading.Thread(target=write_all)
            writing.start()
            writing.join(0.5)
            assert writing.is_alive()
            # Nearly the limit, plus three batches: one on top of it, one that waits for space, and a full one.
            assert len(written) <= 100 + 3 * 1049
            gateway.let_commit()
            writing.join(PATIENCE_S)
            assert len(written) == 6000
        assert len(gateway.rows(ORDERS)) == 6000


def test_a_gateway_that_is_killed_only_delays_the_sender(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        with sender(gateway) as out:
            for number in range(30_000):
                out.write(b"%d" % number)
                if number % 10_000 == 5_000:
                    gateway.kill()
                    gateway.start()
        assert gateway.payloads(ORDERS) == [b"%d" % number for number in range(30_000)]


def test_records_of_a_second_run_never_count_as_those_of_the_first(tmp_path: Path) -> None:
    """The gateway has received more of the first run than it has committed, and reports only the committed position."""
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        first = sender(gateway)
        for number in range(100):
            first.write(b"first %d" % number)
        with gateway.client() as client:
            until(lambda: client.status()["next_sequence"] == 100)
        first.abort()
        second = sender(gateway)
        second.write(b"second")
        gateway.let_commit()
        second.close()
        assert gateway.payloads(ORDERS) == [b"first %d" % number for number in range(100)] + [b"second"]


def test_ids_do_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids come from the gateway's log, whether its records are committed or not, also after a kill."""
    with living_gateway(tmp_path) as gateway:
        for run, now in enumerate((2 * 10**18, 10**18, 0)):
            monkeypatch.setattr(time, "time_ns", lambda now=now: now)
            gateway.hold_commits()
            out = sender(gateway)
            out.write(b"run %d" % run)
            with gateway.client() as client:
                until(lambda run=run, client=client: client.status()["next_sequence"] == run + 1)
            out.abort()
            with gateway.client() as client:
                client.offer(0, 0, 1, 1)  # on disk
            gateway.kill()
            gateway.start()
        gateway.let_commit()
        with sender(gateway) as out:
            out.write(b"last")
        assert gateway.payloads(ORDERS) == [b"run 0", b"run 1", b"run 2", b"last"]


def test_the_next_run_sends_the_records_in_the_spool(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        first = sender(gateway, spool=tmp_path / "spool")
        for number in range(10):
            first.write(b"%d" % number)
        first.flush()
        first.abort()
        gateway.let_commit()
        with sender(gateway, spool=tmp_path / "spool") as second:
            second.write(b"10")
        assert gateway.payloads(ORDERS) == [b"%d" % number for number in range(11)]


def test_records_with_given_ids_continue_after_the_committed_ones(tmp_path: Path) -> None:
    records = [(3 * number, b"%d" % number) for number in range(10)]
    with living_gateway(tmp_path) as gateway:
        with sender(gateway, has_ids=True) as out:
            assert out.committed is None
            for message_id, payload in records[:4]:
                out.write(payload, message_id=message_id)
        with sender(gateway, has_ids=True) as out:
            assert out.committed == 9
            for message_id, payload in records:  # also without a look at what is committed
                out.write(payload, message_id=message_id)
            out.wait()
            assert out.committed == 27
        rows = gateway.rows(ORDERS)
        assert [(row.message_id, row.payload) for row in rows] == records


def test_an_error_in_the_block_stops_at_once_without_an_end(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        out = sender(gateway)
        with pytest.raises(ZeroDivisionError), out:
            out.write(b"%d" % (1 // 0))
        with pytest.raises(ConfigError, match="closed"):
            out.write(b"two")
        out.close()


def test_a_refusal_of_the_gateway_is_raised_in_the_writer(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        out = sender(gateway, options=None, cookie=b"wrong")
        with pytest.raises(ConfigError, match="no cookie is expected here"):
            out.close()
        out = sender(gateway, options=None, cookie=b"wrong")
        with pytest.raises(ConfigError, match="no cookie is expected here"):
            write_for_ever(out)
        out.abort()


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        ({"payload": 7}, {}, "a payload of type int"),
        ({"payload": None}, {}, "a payload of type NoneType"),
        ({"payload": b"", "key": 7}, {}, "a key of type int"),
        ({"payload": b"", "key": b"x" * 65536}, {}, "a key of 65536 bytes"),
        ({"payload": b"x" * 2**24}, {}, "a payload of 16777216 bytes"),
        ({"payload": b"", "event_time": 1.5}, {}, "an event time of 1.5"),
        ({"payload": b"", "message_id": 1}, {}, "a message id"),
        ({"payload": b""}, {"has_ids": True}, "a record without a message id"),
        ({"payload": b"", "message_id": -1}, {"has_ids": True}, "message id -1 after -1"),
        ({"payload": b"", "message_id": 2**64 - 1}, {"has_ids": True}, "message id 18446744073709551615 after -1"),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_when_it_is_written(
    arguments: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    out = send("127.0.0.1:1", stream="orders", **settings)
    with pytest.raises(RecordError) as caught:
        out.write(**arguments)
    assert caught.value.sentence == f"The sender was given {sentence}."
    assert caught.value.next_step
    out.abort()


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"spool": tmp_path / "s", "has_ids": True}, {"bytes_max": 0}, {"to": "nowhere"}]
    for given in settings:
        with pytest.raises(ProcessionError) as caught:
            send(stream="orders", **given)
        assert caught.value.next_step
