"""A log that is fetched over Arrow Flight equals its mapped files, for clients with the secret, also after restarts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.api.pipeline import Pipeline
from procession.errors import RoundError, StorageError
from procession.planner.rules import make_plan
from procession.spark.tasks import Attempt, Task
from procession.storage.flight_reader import FlightAccess, FlightLog, open_log, this_machine
from procession.storage.log_ranges import LogLocation, LogRange
from procession.storage.log_reader import LogReader
from procession.storage.run_store import RunStore
from procession.tls import ClientTls
from tests.certificates import Authority
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
COOKIE = b"secret"


@pytest.fixture
def gateway_process(tmp_path: Path) -> Iterator[Make]:
    started: list[GatewayProcess] = []

    def make(**settings: object) -> GatewayProcess:
        started.append(GatewayProcess(tmp_path / "gateway", {"flight": "127.0.0.1:0", **settings}))
        return started[-1].start()

    yield make
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.kill()


def filled(gateway: GatewayProcess, count: int, cookie: bytes = b"", tls: ClientTls | None = None) -> LogLocation:
    """Write `count` records, and return the location of the log for a reader on another machine."""
    with Producer(gateway.listen, tls) as producer:
        producer.hello(cookie)
        assert producer.notify(7).success
        producer.messages(7, range(count))
        with gateway.client() as client:
            while client.offer(1, 0, 2**40, 2**40).end < count:
                pass
            (member,) = client.fence(1).gateways
    assert member.flight
    return LogLocation("elsewhere/log", member.identity, member.flight)


def rows(log: object, start: int, end: int) -> list[dict[str, object]]:
    return [row for batch in log.read(start, end) for row in batch.to_pylist()]  # type: ignore[attr-defined]


def test_what_is_fetched_is_what_is_mapped(gateway_process: Make) -> None:
    gateway = gateway_process(segment_bytes_max=2000)
    place = filled(gateway, 500)
    here = open_log(LogLocation(str(gateway.directory / "log"), place.identity, place.flight), FlightAccess())
    assert isinstance(here, LogReader), "its directory bears its identity"
    there = open_log(place, FlightAccess())
    assert isinstance(there, FlightLog)
    other = open_log(LogLocation(str(gateway.directory / "log"), "another", place.flight), FlightAccess())
    assert isinstance(other, FlightLog), "a directory of the same name, and another gateway's"
    shared = LogLocation(str(gateway.directory / "log"), place.identity, place.flight, "another machine")
    assert isinstance(open_log(shared, FlightAccess()), FlightLog), "both machines see the directory, and one writes it"
    assert isinstance(open_log(replace(shared, flight=""), FlightAccess()), LogReader), "there is no other way"
    assert isinstance(open_log(replace(shared, machine=this_machine()), FlightAccess()), LogReader)
    for start, end in ((0, 500), (13, 14), (100, 400), (5, 5)):
        assert rows(there, start, end) == rows(here, start, end)
        assert len(rows(there, start, end)) == end - start
    with pytest.raises(RoundError, match="another gateway"):
        rows(FlightLog(LogLocation("", "another", place.flight), FlightAccess(), patience_s=0.0), 0, 1)
    with pytest.raises(RoundError, match="has no records 500 to 501"):
        rows(FlightLog(place, FlightAccess(), patience_s=0.0), 499, 501)


def test_a_gateway_that_starts_again_gives_the_rest(gateway_process: Make) -> None:
    gateway = gateway_process()
    place = filled(gateway, 300)
    log = FlightLog(place, FlightAccess())
    assert len(rows(log, 0, 100)) == 100
    gateway.kill()
    again = threading.Thread(target=gateway.start)
    again.start()
    assert [row["message_id"] for row in rows(log, 100, 300)] == list(range(100, 300))
    again.join()


def test_rows_are_sent_only_to_clients_with_the_secret(gateway_process: Make) -> None:
    place = filled(gateway_process(limits={"cookie": b"another"}, control_cookie=COOKIE), 10, b"another")
    assert len(rows(FlightLog(place, FlightAccess(COOKIE)), 0, 10)) == 10
    for cookie in (b"", b"guess"):
        with pytest.raises(StorageError, match="wrong cookie"):
            rows(FlightLog(place, FlightAccess(cookie)), 0, 10)


def test_with_tls_both_sides_show_what_they_are(gateway_process: Make, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    place = filled(
        gateway_process(tls=authority.server(authority.ca), control_tls=authority.client()), 10, tls=authority.client()
    )
    assert place.flight.startswith("grpc+tls://")
    assert len(rows(FlightLog(place, FlightAccess(tls=authority.client())), 0, 10)) == 10
    with pytest.raises(RoundError, match="refuses to send its log"):
        rows(FlightLog(place, FlightAccess(tls=ClientTls(authority.ca)), patience_s=0.0), 0, 10)


def test_a_log_that_is_not_the_offered_one_is_not_given_away(gateway_process: Make) -> None:
    gateway = gateway_process()
    place = filled(gateway, 10)
    with gateway.client() as client:
        offered = client.offer(1, 0, 2**40, 2**40).offset
    log = FlightLog(place, FlightAccess(), patience_s=0.0)
    assert sum(batch.num_rows for batch in log.read(0, 10, offered)) == 10
    with pytest.raises(RoundError, match="the records before 10 are different"):
        list(log.read(0, 10, offered._replace(checksum="0123")))


def test_a_missing_log_is_reported_with_a_next_step() -> None:
    with pytest.raises(StorageError, match="is not on this machine"):
        open_log(LogLocation("elsewhere/log", "identity"), FlightAccess())


def test_a_task_on_another_machine_than_the_log_has_the_same_output(gateway_process: Make, tmp_path: Path) -> None:
    gateway = gateway_process()
    place = filled(gateway, 200)
    pipeline = Pipeline("p")
    pipeline.source().map(bytes.upper).sink("out", to="file:out")
    plan = make_plan(pipeline.graph())
    made = []
    for name, one in (("near", LogLocation(str(gateway.directory / "log"), place.identity)), ("far", place)):
        runs = tmp_path / name
        pieces = (LogRange("gateway-0", 20, 60, one), LogRange("gateway-1", 150, 200, one))
        manifest = Task(plan, tmp_path / "none", runs).run_range(Attempt(0, 0, 1), 1000, 1090, None, pieces)
        assert manifest.failure is None
        (run,) = manifest.runs
        made.append([row for batch in RunStore(runs).read(0, run) for row in batch.to_pylist()])
        shutil.rmtree(runs)
    assert made[0] == made[1]
    assert [row["payload"] for row in made[0]] == [b"%d\n" % number for number in (*range(20, 60), *range(150, 200))]
