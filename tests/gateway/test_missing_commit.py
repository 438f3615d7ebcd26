"""A gateway with a complete log and older committed positions gets the last commit before it admits a producer. It is
refused if that commit does not name all positions that it lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from procession.driver.last_commit import LastCommit
from procession.errors import RoundError, StorageError
from procession.gateway.confirmation import KnownGateway
from procession.storage.log_ranges import LogOffset
from procession.wire.messages import Ack
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.gateways import Gateways
from tests.gateway.producer import Producer

ALL = 2**40
STREAM = 7


@pytest.fixture
def gateways(tmp_path: Path, request: pytest.FixtureRequest) -> Gateways:
    return Gateways(tmp_path, request.param, link_interval_s=0.05, checkpoint=tmp_path / "checkpoint")


def sent(gateway: GatewayProcess, ids: range) -> None:
    with Producer(gateway.listen) as producer:
        producer.hello()
        while not producer.notify(STREAM).success:
            producer.expect(Ack)
        producer.messages(STREAM, ids)


def kept_on_disk(gateway: GatewayProcess, end: int, fence: int) -> None:
    """Wait until records up to `end` are offered, without a commit, so that they are on disk."""
    with gateway.client() as driver:
        while driver.offer(fence, LogOffset(), ALL, ALL).end < end:
            pass


def set_back(gateway: GatewayProcess, copy: Path | None) -> None:
    gateway.kill()
    shutil.rmtree(gateway.directory)
    if copy is not None:
        copy.rename(gateway.directory)
    gateway.start(is_confirmed=False)


def reference(gateway: GatewayProcess) -> int | None:
    """Return the position from which a producer is asked to continue, or None if it is not admitted."""
    with Producer(gateway.listen) as producer:
        producer.hello()
        result = producer.notify(STREAM)
        return result.point_of_reference if result.success else None


def refusal(gateways: Gateways, epoch_reader: EpochReader) -> StorageError:
    """Return the error that stops the driver."""
    found: list[StorageError] = []

    def is_refused() -> bool:
        try:
            epoch_reader.take()
        except StorageError as error:
            found.append(error)
        return bool(found)

    gateways.until(is_refused, "the driver to refuse it")
    return found[0]


@pytest.mark.parametrize(("gateways", "holder"), [(1, 0), (2, 0), (2, 1)], indirect=["gateways"])
def test_a_copy_from_before_the_last_commit_gets_that_commit_before_a_producer_is_admitted(
    gateways: Gateways, holder: int, tmp_path: Path
) -> None:
    with gateways:
        epoch_reader, gateway = gateways.epoch_reader(), gateways[holder]
        epoch_reader.take()
        sent(gateway, range(10))
        kept_on_disk(gateway, 10, epoch_reader.checkpoint.fence)
        shutil.copytree(gateway.directory, tmp_path / "copy")
        gateways.until(lambda: epoch_reader.has(STREAM, 10), "ten records")
        set_back(gateway, tmp_path / "copy")
        assert reference(gateway) is None
        gateways.until(lambda: not epoch_reader.take() and reference(gateway) == 9, "the last commit to be told again")
        sent(gateway, range(10, 20))
        gateways.until(lambda: epoch_reader.has(STREAM, 20), "twenty records")
        assert epoch_reader.ids[STREAM] == list(range(20))


@pytest.mark.parametrize("gateways", [1], indirect=True)
def test_a_commit_is_refused_until_a_driver_has_compared_the_log(gateways: Gateways, tmp_path: Path) -> None:
    with gateways:
        epoch_reader, gateway = gateways.epoch_reader(), gateways[0]
        epoch_reader.take()
        sent(gateway, range(10))
        kept_on_disk(gateway, 10, epoch_reader.checkpoint.fence)
        shutil.copytree(gateway.directory, tmp_path / "copy")
        gateways.until(lambda: epoch_reader.has(STREAM, 10), "ten records")
        set_back(gateway, tmp_path / "copy")
        with gateway.client() as driver:
            committed = driver.status()["epoch"]
            with pytest.raises(RoundError, match="No driver has compared the log"):
                driver.commit(epoch_reader.checkpoint.fence, committed + 1, 10, {STREAM: 9})
            assert driver.status()["epoch"] == committed
            driver.offer(epoch_reader.checkpoint.fence, LogOffset(), ALL, ALL)
            driver.commit(epoch_reader.checkpoint.fence, committed + 1, 10, {STREAM: 9})
            assert driver.status()["epoch"] == committed + 1


@pytest.mark.parametrize("gateways", [1], indirect=True)
def test_a_copy_that_lacks_more_than_the_last_commit_names_is_refused(gateways: Gateways, tmp_path: Path) -> None:
    with gateways:
        epoch_reader = EpochReader(tmp_path / "checkpoint", gateways[0].directory, records_max=10)
        sent(gateways[0], range(20))
        kept_on_disk(gateways[0], 20, epoch_reader.checkpoint.fence)
        shutil.copytree(gateways[0].directory, tmp_path / "copy")
        gateways.until(lambda: epoch_reader.has(STREAM, 20), "two epochs of ten records")
        set_back(gateways[0], tmp_path / "copy")
        assert "0 epochs are committed in it, but 1 were before" in refusal(gateways, epoch_reader).sentence
        assert reference(gateways[0]) is None
        with pytest.raises(StorageError, match="0 epochs are committed in it"):
            epoch_reader.successor().word.raise_fence(epoch_reader.checkpoint)
        assert reference(gateways[0]) is None


@pytest.mark.parametrize(("gateways", "is_lost"), [(2, False), (2, True)], indirect=["gateways"])
def test_a_leader_without_offered_rows_is_refused_when_it_is_set_back(
    gateways: Gateways, tmp_path: Path, is_lost: bool
) -> None:
    """The leader has the positions of all streams. With an older copy, another gateway would accept records again."""
    with gateways:
        epoch_reader = gateways.epoch_reader()
        epoch_reader.take()
        shutil.copytree(gateways[0].directory, tmp_path / "copy")
        for end in (10, 20, 30):
            sent(gateways[1], range(end - 10, end))
            gateways.until(lambda end=end: epoch_reader.has(STREAM, end), f"{end} records")  # type: ignore[misc]
        set_back(gateways[0], None if is_lost else tmp_path / "copy")
        why = "its directory was created again" if is_lost else "0 epochs are committed in it"
        assert why in refusal(gateways, epoch_reader).sentence
        assert reference(gateways[0]) is None, "nobody has confirmed it"


@pytest.mark.parametrize("gateways", [1], indirect=True)
def test_an_older_copy_of_the_leader_that_lacks_a_member_is_refused(gateways: Gateways, tmp_path: Path) -> None:
    """It lacks only positions that the last commit names, but it would refuse the gateway that it does not list."""
    with gateways:
        epoch_reader = gateways.epoch_reader()
        epoch_reader.take()
        shutil.copytree(gateways[0].directory, tmp_path / "copy")
        gateways.all.append(gateways.make(1).start(is_confirmed=False))
        gateways.until(
            lambda: not epoch_reader.take() and reference(gateways[1]) is not None, "the driver to confirm it"
        )
        sent(gateways[1], range(10))
        gateways.until(lambda: epoch_reader.has(STREAM, 10), "ten records")
        set_back(gateways[0], tmp_path / "copy")
        assert "its list of gateways lacks gateway-1" in refusal(gateways, epoch_reader).sentence
        assert reference(gateways[0]) is None, "nobody has confirmed it"
        with pytest.raises(StorageError, match="lacks gateway-1"):
            epoch_reader.successor().word.raise_fence(epoch_reader.checkpoint)
        assert reference(gateways[0]) is None


@pytest.mark.parametrize("gateways", [2], indirect=True)
def test_a_leader_is_confirmed_although_a_gateway_has_left(gateways: Gateways) -> None:
    with gateways:
        epoch_reader = gateways.epoch_reader()
        sent(gateways[1], range(10))
        gateways.until(lambda: epoch_reader.has(STREAM, 10), "ten records")
        with gateways[0].client() as operator:
            operator.leave("gateway-1")
        gateways.until(lambda: not epoch_reader.take() and gateways[1].process.poll() is not None, "gateway-1 to leave")
        gateways[0].kill()
        gateways[0].start(is_confirmed=False)
        gateways.until(
            lambda: not epoch_reader.take() and reference(gateways[0]) == 9, "the driver to confirm the leader"
        )


def test_only_the_leader_must_have_the_positions_that_every_gateway_had(tmp_path: Path) -> None:
    with Gateways(tmp_path, 1) as gateways:
        epoch_reader = gateways.epoch_reader()
        sent(gateways[0], range(10))
        gateways.until(lambda: epoch_reader.has(STREAM, 10), "ten records")
        record = epoch_reader.checkpoint.rounds.read(epoch_reader.epoch)
        last = LastCommit(1, record, epoch_reader.checkpoint.places.all())
        assert last.known("gateway-1") == KnownGateway(epoch_reader.epoch + 1)
        assert last.known("gateway-0").gateways == ()
        assert last.known("gateway-0").epochs_kept == epoch_reader.epoch
        assert last.known("gateway-0").identity
