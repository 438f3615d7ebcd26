"""A gateway whose directory was set back to an older copy is refused before any producer is admitted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord
from procession.driver.last_commit import LastCommit, last_commit
from procession.driver.offsets import GatewayNotifier
from procession.errors import ConfigError, FencedError, RoundError, StorageError
from procession.gateway.confirmation import KnownGateway, check_offered, check_uncommitted
from procession.gateway.control_client import ControlClient
from procession.gateway.log_rows import LogRow, batch_of, eos_row
from procession.gateway.request_parsing import FORMAT
from procession.merge.event_time import DeclaredOrder
from procession.storage.log import IngressLog
from procession.storage.log_ranges import LogLocation, LogOffset
from procession.storage.segment import KIND_RECORD
from procession.wire.messages import NOTHING_COMMITTED, Ack, Message
from tests.gateway.gateway_process import PATIENCE_S, GatewayProcess, confirm
from tests.gateway.gateways import Gateways
from tests.gateway.producer import Producer

ALL = 2**40
STREAM = 7


def offered(driver: ControlClient, start: LogOffset, end: int) -> LogOffset:
    """Wait until the driver is offered rows from `start` up to `end`, and return the offset."""
    while (offer := driver.offer(1, start, ALL, ALL)).end < end:
        pass
    return offer.offset


def taken(gateway: GatewayProcess, start: LogOffset, end: int) -> LogOffset:
    """Send records up to `end`, commit them, and return the offset."""
    with Producer(gateway.listen) as producer, gateway.client(PATIENCE_S) as driver:
        producer.hello()
        assert producer.notify(STREAM).success
        producer.messages(STREAM, range(start.sequence, end))
        known = offered(driver, start, end)
        driver.commit(1, end, end, {STREAM: end - 1})
        return known


def is_admitted(gateway: GatewayProcess) -> bool:
    with Producer(gateway.listen) as producer:
        producer.hello()
        return producer.notify(STREAM).success


@pytest.mark.parametrize("is_refilled", [False, True])
def test_an_older_copy_is_refused_before_any_producer_is_admitted(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path, is_refilled: bool
) -> None:
    gateway = gateway_process().start()
    known = taken(gateway, LogOffset(), 10)
    gateway.kill()
    shutil.copytree(gateway.directory, tmp_path / "copy")
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        LastCommit(1).offer("gateway-0", known, ALL, ALL, driver)
    known = taken(gateway, known, 20)
    gateway.kill()
    gateway.directory.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(gateway.directory)
    if is_refilled:
        # As producers of an earlier version could do: the same number of records, with other contents.
        with IngressLog(gateway.directory / "log") as log:
            log.append(batch_of([eos_row(STREAM, number) for number in range(10)]))
            log.sync()
    gateway.start(is_confirmed=False)
    assert not is_admitted(gateway)
    with gateway.client(PATIENCE_S) as driver:
        with pytest.raises(StorageError, match="not the one that records were offered from"):
            driver.fence(2, known)
        with pytest.raises(StorageError) as refused:
            driver.offer(1, known, ALL, ALL)
        assert "not an older copy" in refused.value.next_step
    assert not is_admitted(gateway), "nobody has confirmed it"
    gateway.kill()
    shutil.rmtree(gateway.directory)
    (tmp_path / "newest").rename(gateway.directory)
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        assert LastCommit(1).offer("gateway-0", known, ALL, ALL, driver).end == 20
    assert taken(gateway, known, 30).sequence == 30


def test_a_lost_directory_is_refused_even_if_producers_have_refilled_it(
    gateway_process: Callable[..., GatewayProcess],
) -> None:
    gateway = gateway_process().start()
    known = taken(gateway, LogOffset(), 10)
    gateway.kill()
    shutil.rmtree(gateway.directory)
    gateway.start()
    taken(gateway, LogOffset(), 20)
    with gateway.client(PATIENCE_S) as driver, pytest.raises(StorageError, match="created again"):
        driver.offer(1, known, ALL, ALL)


def test_a_waiting_producer_is_admitted_as_soon_as_the_driver_asks(
    gateway_process: Callable[..., GatewayProcess],
) -> None:
    gateway = gateway_process(ack_interval_s=3600.0).start()
    assert is_admitted(gateway), "a new directory has nothing to compare"
    gateway.kill()
    gateway.start(is_confirmed=False)
    with Producer(gateway.listen) as producer, gateway.client(PATIENCE_S) as driver:
        producer.hello()
        assert not producer.notify(STREAM).success
        driver.fence(1)
        driver.offer(1, 0, ALL, ALL)
        assert not producer.notify(STREAM).success, "these requests do not name their log"
        driver.fence(1, LogOffset())
        assert not producer.notify(STREAM).success, "this request may be late"
        confirm(driver, 1, LogOffset())
        producer.expect(Ack)
        assert producer.notify(STREAM).success


def test_a_replaced_driver_confirms_no_log(gateway_process: Callable[..., GatewayProcess]) -> None:
    gateway = gateway_process().start()
    with gateway.client(PATIENCE_S) as driver:
        driver.fence(5)
    gateway.kill()
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver, pytest.raises(FencedError):
        confirm(driver, 4, LogOffset())
    assert not is_admitted(gateway)


def test_a_replaced_driver_does_not_confirm_an_older_copy_of_the_log(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """The fence of its successor was in the lost directory, so only the checkpoint has it."""
    suspended = Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="")
    gateway = gateway_process(checkpoint=tmp_path / "checkpoint").start()
    with gateway.client(PATIENCE_S) as driver:
        before = driver.fence(suspended.fence, LogOffset())
    Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="")
    gateway.kill()
    shutil.rmtree(gateway.directory)
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        late = KnownGateway(start=before.start)
        assert driver.fence(suspended.fence, LogOffset(), late).start != before.start
        with pytest.raises(FencedError):
            last_commit(suspended, None, {}).raise_fence("gateway-0", LogOffset(), driver)
    assert not is_admitted(gateway)


def test_a_request_that_names_no_log_commits_nothing_to_an_older_copy(
    gateway_process: Callable[..., GatewayProcess],
) -> None:
    gateway = gateway_process().start()
    gateway.kill()
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        driver.fence(1)
        with pytest.raises(RoundError, match="No driver has compared the log"):
            driver.commit(1, 0, 0, {})
        driver.fence(1, LogOffset())
        driver.commit(1, 0, 0, {})


def test_a_driver_refuses_a_list_of_gateways_that_lacks_a_known_one(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A leader whose directory is an older copy sends such a list."""
    gateway = gateway_process().start()
    drivers = GatewayNotifier(gateway.directory, b"", 1)
    record = RoundRecord(0, 1, "p", 0, 3, {}, ends={"gateway-7": LogOffset(3)})
    with pytest.raises(StorageError, match="list of gateways lacks gateway-7"):
        drivers.acknowledge(record)
    checkpoint = Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="")
    checkpoint.places.keep("gateway-7", LogLocation("far"))
    with pytest.raises(StorageError, match="list of gateways lacks gateway-7"):
        drivers.raise_fence(checkpoint)


def test_a_request_of_a_later_version_is_refused_with_a_sentence(
    gateway_process: Callable[..., GatewayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateway_process().start()
    monkeypatch.setattr("procession.gateway.control_client.FORMAT", FORMAT + 1)
    with gateway.client() as driver, pytest.raises(ConfigError, match=f"format {FORMAT + 1}, and this gateway underst"):
        driver.status()


def test_each_of_several_gateways_is_compared_with_its_own_offered_rows(tmp_path: Path) -> None:
    with Gateways(tmp_path, 2) as gateways:
        epoch_reader = gateways.epoch_reader()
        producers = [Producer(gateway.listen) for gateway in gateways.all]
        for number, producer in enumerate(producers):
            producer.hello()
            assert producer.notify(number).success
            producer.messages(number, range(10))
        gateways.until(lambda: epoch_reader.has(0, 10) and epoch_reader.has(1, 10), "ten records of each")
        gateways[1].kill()
        copy = tmp_path / "copy"
        shutil.copytree(gateways[1].directory, copy)
        gateways[1].start(is_confirmed=False)
        gateways.until(lambda: not epoch_reader.take(), "the driver to ask again")
        with Producer(gateways[1].listen) as producer:
            producer.hello()
            while not producer.notify(1).success:
                producer.expect(Ack)
            producer.messages(1, range(10, 20))
            gateways.until(lambda: epoch_reader.has(1, 20), "twenty records")
        gateways[1].kill()
        shutil.rmtree(gateways[1].directory)
        copy.rename(gateways[1].directory)
        gateways[1].start(is_confirmed=False)

        def is_refused() -> bool:
            try:
                return bool(epoch_reader.take()) and False
            except StorageError as error:
                return "gateway-1 is not the one" in error.sentence

        gateways.until(is_refused, "the driver to refuse it")


@pytest.mark.parametrize("sequence", [0, 5])
def test_an_offset_without_an_incarnation_belongs_to_a_log_without_one(tmp_path: Path, sequence: int) -> None:
    landed = Path(__file__).parents[1] / "formats" / "landed" / "two-gateways" / "gateway-0" / "log"
    shutil.copytree(landed, tmp_path / "landed")
    with IngressLog(tmp_path / "landed") as log, IngressLog(tmp_path / "other") as other:
        check_offered(log, LogOffset(sequence), "gateway-0")
        other.append(batch_of([eos_row(STREAM, number) for number in range(10)]))
        if sequence:
            with pytest.raises(StorageError, match="created again"):
                check_offered(other, LogOffset(sequence), "gateway-0")
            with pytest.raises(StorageError, match="ends at record 14"):
                check_offered(log, LogOffset(15), "gateway-0")
        else:
            check_offered(other, LogOffset(sequence), "gateway-0")


def test_a_gateway_with_a_deleted_directory_admits_no_producer_if_a_driver_has_claimed_the_pipeline(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A producer that keeps its records in memory takes its ids from the gateway. An empty gateway would give it ids of
    committed records, and would later acknowledge records that it has lost."""
    checkpoint = tmp_path / "checkpoint"
    gateway = gateway_process(checkpoint=checkpoint).start()
    assert is_admitted(gateway), "no driver has claimed the pipeline: nothing was ever offered"
    Checkpoint.claim(checkpoint, name="p", fingerprint="")
    known = taken(gateway, LogOffset(), 10)
    gateway.kill()
    gateway.directory.rename(tmp_path / "newest")
    gateway.start(is_confirmed=False)
    assert not is_admitted(gateway)
    with gateway.client(PATIENCE_S) as driver, pytest.raises(StorageError, match="it ends at record 0, but 10 were"):
        driver.fence(1, known)
    assert not is_admitted(gateway)
    gateway.kill()
    shutil.rmtree(gateway.directory)
    (tmp_path / "newest").rename(gateway.directory)
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        confirm(driver, 1, known)
    assert taken(gateway, known, 20).sequence == 20


def test_a_new_gateway_in_a_claimed_pipeline_admits_producers_after_the_driver_has_asked(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="")
    gateway = gateway_process(checkpoint=tmp_path / "checkpoint").start()
    assert not is_admitted(gateway)
    with gateway.client(PATIENCE_S) as driver:
        LastCommit(1).offer("gateway-0", LogOffset(), ALL, ALL, driver)
    assert is_admitted(gateway)


def in_order(gateway: GatewayProcess, times: range) -> LogOffset:
    """Send records in event-time order to both streams, and commit those that are in order."""
    with Producer(gateway.listen) as producer, gateway.client(PATIENCE_S) as driver:
        producer.hello()
        for stream_id in (1, 2):
            assert producer.notify(stream_id).success
            producer.send(*(Message(stream_id, time, 10**9 * time, b"", b"%d" % time) for time in times))
        return offered(driver, LogOffset(), 2 * times.stop - 1)


def test_an_older_copy_is_refused_with_the_order_of_event_time_too(
    gateway_process: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    gateway = gateway_process(declared=DeclaredOrder(frozenset({1, 2}))).start()
    in_order(gateway, range(5))
    gateway.kill()
    shutil.copytree(gateway.directory, tmp_path / "copy")
    gateway.start()
    known = in_order(gateway, range(5, 10))
    gateway.kill()
    gateway.directory.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(gateway.directory)
    gateway.start(is_confirmed=False)
    with Producer(gateway.listen) as producer, gateway.client(PATIENCE_S) as driver:
        producer.hello()
        assert not producer.notify(1).success
        for ask in (
            lambda: driver.fence(2, known),
            lambda: driver.offer(1, known, ALL, ALL),
            lambda: driver.offer_among(1, known, (ALL, ALL), {}),
        ):
            with pytest.raises(StorageError, match="not the one that records were offered from"):
                ask()
        assert not producer.notify(1).success, "nobody has confirmed it"
    gateway.kill()
    shutil.rmtree(gateway.directory)
    (tmp_path / "newest").rename(gateway.directory)
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        assert driver.fence(2, known).next_sequence >= known.sequence


@pytest.mark.parametrize("holder", [0, 1])
def test_no_stream_is_granted_by_the_report_of_a_gateway_with_an_older_directory(tmp_path: Path, holder: int) -> None:
    """Its newest directory holds the stream, with uncommitted records; the older copy does not."""
    other = 1 - holder
    with Gateways(tmp_path, 2, link_interval_s=0.05) as gateways:
        gateways[holder].kill()
        shutil.copytree(gateways[holder].directory, tmp_path / "copy")
        gateways[holder].start()
        gateways.until(lambda: len(gateways.connected()) == 2, "both")
        with Producer(gateways[holder].listen) as producer, gateways[holder].client(PATIENCE_S) as driver:
            producer.hello()
            while not producer.notify(STREAM).success:
                pass
            producer.messages(STREAM, range(3))
            known = offered(driver, LogOffset(), 3)
        gateways[holder].kill()
        gateways[holder].directory.rename(tmp_path / "newest")
        (tmp_path / "copy").rename(gateways[holder].directory)
        gateways[holder].start(is_confirmed=False)
        gateways.until(lambda: "gateway-1" in gateways.connected(), "the link")
        assert not is_admitted(gateways[other])
        gateways[holder].kill()
        shutil.rmtree(gateways[holder].directory)
        (tmp_path / "newest").rename(gateways[holder].directory)
        gateways[holder].start(is_confirmed=False)
        with gateways[holder].client(PATIENCE_S) as driver:
            confirm(driver, 1, known)
            driver.commit(1, 0, 3, {STREAM: 2})
        gateways.until(lambda: is_admitted(gateways[other]), "the stream to be free")


def test_a_log_with_uncommitted_records_that_another_gateway_has_committed_is_an_older_copy() -> None:
    rows = [batch_of([LogRow(KIND_RECORD, STREAM, 5), LogRow(KIND_RECORD, 8, 40), LogRow(KIND_RECORD, STREAM, 9)])]
    check_uncommitted(rows, {}, "gateway-0")
    check_uncommitted(rows, {STREAM: 4, 9: 100}, "gateway-0")
    check_uncommitted(rows, {STREAM: NOTHING_COMMITTED}, "gateway-0")
    for last_id in (5, 8, 9, 2**64 - 2):
        with pytest.raises(StorageError, match=r"records of stream 7 that another gateway has committed"):
            check_uncommitted(rows, {STREAM: last_id}, "gateway-0")
    check_uncommitted([batch_of([eos_row(STREAM, 5)])], {STREAM: 5}, "gateway-0")


def test_an_older_copy_with_records_that_were_committed_elsewhere_accepts_no_commit(
    gateway_process: Callable[..., GatewayProcess],
) -> None:
    """None of its rows were offered, so there is nothing to compare. The last commit shows that the copy is old."""
    gateway = gateway_process().start()
    with Producer(gateway.listen) as producer:
        producer.hello()
        assert producer.notify(STREAM).success
        producer.messages(STREAM, range(3))
        with gateway.client(PATIENCE_S) as driver:
            offered(driver, LogOffset(), 3)
    gateway.kill()
    gateway.start(is_confirmed=False)
    with gateway.client(PATIENCE_S) as driver:
        driver.offer(1, LogOffset(), ALL, ALL, KnownGateway(epochs=1))
        with pytest.raises(StorageError, match="records of stream 7 that another gateway has committed"):
            driver.commit(1, 0, 0, {STREAM: 2})
    assert not is_admitted(gateway)
