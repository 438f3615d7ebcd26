"""Each part is killed at each of its crash points, one after the other, on one running pipeline; then the output is
checked.

The pipeline has three sinks in two processes. `plain` must equal the input, byte for byte. `one` and `two` get the same
records with a random suffix that is new in each attempt of an epoch, so they must equal each other.
"""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from procession.address import SocketFile, connected_file, parse_endpoint
from procession.commit.transaction_id import TransactionId
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.storage.journal import read_journal
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, read_json, stopped, wait_for

APP = '''
import os
from pathlib import Path
from procession import Pipeline

def failing_at(payload):
    """Kills whom the file that a record names tells it to, once; the record itself passes unchanged."""
    if payload.startswith(b"kill by "):
        order = Path(payload[8:].decode())
        if order.exists():
            victim = order.read_text()
            order.unlink()
            os.kill(int(victim or os.getpid()), 9)
    return payload

def salted(payload):
    return payload + b" " + os.urandom(4).hex().encode()

pipeline = Pipeline("walk", parallelism=2)
lines = pipeline.source("lines").map(failing_at)
lines.sink("plain", to="file:plain")
salty = lines.map(salted)
salty.sink("one", to="file:salty")
salty.sink("two", to="file:salty")
'''
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300
SINKS = ("plain", "one", "two")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("walk"), APP, SETTINGS) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster
        everything_is_there_once_and_in_order(cluster)


def everything_is_there_once_and_in_order(cluster: Cluster) -> None:
    """Check that the output equals the inputs, which were sent one after the other."""
    expected = b"".join(path.read_bytes() for path in cluster.inputs)
    assert cluster.committed("plain") == expected
    salted = cluster.committed("one")
    assert salted == cluster.committed("two")
    assert b"".join(line[:-9] + b"\n" for line in salted.splitlines()) == expected


def in_flight(cluster: Cluster) -> dict[str, int]:
    """Return, for each sink, how many bytes of the inputs its visible output has."""
    suffix = {"plain": 0, "one": 9, "two": 9}
    shown = {sink: cluster.committed(sink) for sink in SINKS}
    return {sink: len(data) - data.count(b"\n") * suffix[sink] for sink, data in shown.items()}


# For each fault point at which a driver dies: whether the open epoch then has its round record, whether it has its
# commit, and how many of the three sinks have committed it.
DRIVER_POINTS = {
    "driver:after-offsets": (False, False, 0),
    "driver:before-phase1": (False, False, 0),
    "driver:between-votes": (False, False, 0),
    "driver:before-record": (False, False, 0),
    "driver:after-record": (True, False, 0),
    "driver:before-phase2": (True, True, 0),
    "driver:between-phase2": (True, True, 1),
    "driver:before-ack": (True, True, 3),
    "driver:idle": (True, True, 3),
}


OFTEN = ("driver:after-offsets", "driver:after-record", "driver:between-phase2")
"""The points of every test run, one for each outcome: the epoch is undecided, in doubt, or decided. The simulator kills
the same code at every step."""


@pytest.mark.parametrize("point", [point if point in OFTEN else slow(point) for point in DRIVER_POINTS])
def test_i1_i2_a_driver_that_dies_leaves_visible_what_is_decided_and_its_successor_completes_it(
    cluster: Cluster, point: str
) -> None:
    is_recorded, is_committed, sinks_told = DRIVER_POINTS[point]
    before, fence, restarts = cluster.log().committed, cluster.fence, cluster.restarts(DRIVER)
    size = sum(path.stat().st_size for path in cluster.inputs)
    cluster.arm(point)
    source = cluster.send(cluster.numbered(RECORDS))
    cluster.until_dead(DRIVER)

    epoch = before + 1
    left = cluster.log(fence)
    assert left.offered >= epoch
    assert (cluster.rounds(fence).read(epoch) is not None) == is_recorded
    assert left.is_committed(epoch) == is_committed
    # Only the data that was sent to a sink is in flight.
    wait_for(lambda: sum(shown > size for shown in in_flight(cluster).values()) >= sinks_told, "phase 2 to arrive")
    assert sum(shown > size for shown in in_flight(cluster).values()) == sinks_told
    if point == "driver:before-record":
        assert all(len(prepared) == 1 for prepared in cluster.prepared().values())
    if not is_committed:
        assert acknowledged(cluster, cluster.inputs[-1]) is None, "I4: acknowledged before it is committed"

    cluster.until_done(source)
    assert cluster.restarts(DRIVER) == restarts + 1
    assert cluster.fence == fence + 1
    everything_is_there_once_and_in_order(cluster)


def acknowledged(cluster: Cluster, path: Path) -> int | None:
    """Return the last message id that the gateway reports as committed, of a file that is being sent."""
    (stream,) = [stream for stream in cluster.status()["streams"] if stream["name"].endswith(path.name)]
    committed: int | None = stream["committed"]
    return committed


@pytest.mark.parametrize(
    "point", ["sink:before-vote", "sink:after-vote-before-reply", "sink:before-commit", "sink:after-commit"]
)
def test_a_sink_that_dies_comes_back_and_gets_everything_once(cluster: Cluster, point: str) -> None:
    before = {part: cluster.restarts(part) for part in ("sink-0", "sink-1", DRIVER)}
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    after = {part: cluster.restarts(part) for part in before}
    assert not cluster.fault.exists()
    assert sum(after.values()) == sum(before.values()) + 1
    assert after[DRIVER] == before[DRIVER]
    everything_is_there_once_and_in_order(cluster)


@pytest.mark.parametrize(
    "point",
    [
        "gateway:before-append",
        "gateway:after-append",
        "gateway:before-snapshot",
        "gateway:before-ack",
        "gateway:after-ack-before-trim",
    ],
)
def test_a_gateway_that_dies_comes_back_and_its_producers_send_again_what_it_lost(cluster: Cluster, point: str) -> None:
    before = {part: cluster.restarts(part) for part in ("gateway", DRIVER)}
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    assert not cluster.fault.exists()
    assert {part: cluster.restarts(part) for part in before} == {
        "gateway": before["gateway"] + 1,
        DRIVER: before[DRIVER],
    }
    everything_is_there_once_and_in_order(cluster)


# test_exchange_crashes kills a driver between the tasks of two levels in each run.
@pytest.mark.parametrize("victim", ["worker", slow("driver")])
def test_a_process_that_is_killed_during_tasks_changes_nothing(cluster: Cluster, victim: str) -> None:
    restarts = cluster.restarts(DRIVER)
    order = cluster.directory / f"kill-{victim}"
    order.write_text(str(cluster.supervisor.pid(DRIVER)) if victim == "driver" else "")
    lines = cluster.numbered(RECORDS)
    lines.insert(150, b"kill by " + bytes(order))
    cluster.until_done(cluster.send(lines))
    assert not order.exists()
    assert cluster.restarts(DRIVER) == restarts + (victim == "driver")
    everything_is_there_once_and_in_order(cluster)


def test_a_sink_that_reconnects_while_the_decision_is_in_doubt_waits_for_it(cluster: Cluster) -> None:
    """A sink is suspended, so that the vote is open; then the JVM, so that it cannot commit; then the sink votes.

    Until the JVM continues, the round is in doubt. In this time both sinks are killed and restarted.
    """
    sinks = [cluster.supervisor.pid(part) for part in ("sink-0", "sink-1")]
    assert all(sinks)
    rounds, epoch = cluster.rounds(), cluster.log().committed + 1
    size = sum(path.stat().st_size for path in cluster.inputs)
    java = cluster.java()
    with stopped(sinks[0]):  # type: ignore[arg-type]
        source = cluster.send(cluster.numbered(RECORDS))
        cluster.until(lambda: len(cluster.prepared()["one"]) == 1, "the vote of the sink that goes on")
        os.kill(java, signal.SIGSTOP)
    try:
        cluster.until(lambda: rounds.read(epoch) is not None, "the round record")
        prepared = cluster.prepared()
        assert all(len(listed) == 1 for listed in prepared.values())
        greeted = greetings(cluster)
        for part in ("sink-0", "sink-1"):
            cluster.supervisor.kill(part)
        cluster.until(lambda: greetings(cluster) >= greeted + len(SINKS), "all instances to be greeted again")
        assert cluster.prepared() == prepared, "neither committed nor aborted"
        assert set(in_flight(cluster).values()) == {size}, "I1: visible before it is decided"
        assert not cluster.log().is_committed(epoch)
        assert acknowledged(cluster, cluster.inputs[-1]) is None, "I4: acknowledged before it is committed"
    finally:
        os.kill(java, signal.SIGCONT)
    cluster.until_done(source)
    record = rounds.read(epoch)
    assert record is not None
    assert {sink: (part.txn,) for sink, part in record.parts.items()} == prepared
    everything_is_there_once_and_in_order(cluster)


def greetings(cluster: Cluster) -> int:
    """Return how many sessions the sinks have accepted so far, in all their runs."""
    return sum(cluster.supervisor.log_path(part).read_text().count("session.opened") for part in ("sink-0", "sink-1"))


NONSENSE = {
    "noise": random.Random(5).randbytes(5_000),
    "a frame that is longer than any": b"\xff\xff\xff\xff" + bytes(1_000),
    "a frame of nothing": bytes(4),
    "the beginning of a frame": b"\0\0\x10\0half a frame",
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "JSON that is no request": b'{"op": ["commit"], "fence": -1}\n[]\n{"op": "offer"}\nnull\n',
    "a fence that is no number": b'{"op": "fence", "fence": "99", "cookie": ""}\n',
    "a request without an end": b"x" * 3_000_000,
}


def connected(address: str) -> socket.socket:
    endpoint = parse_endpoint(address)
    if isinstance(endpoint, SocketFile):
        return connected_file(endpoint.path, timeout_s=30)
    return socket.create_connection(endpoint, timeout=30)


def test_i7_invalid_bytes_at_any_port_end_no_process_and_do_not_disturb_the_pipeline(cluster: Cluster) -> None:
    restarts = dict(cluster.supervisor.restarts)
    source = cluster.send(cluster.numbered(2_000), rate=2_000)
    gateway = read_json(cluster.directory / "gateway" / "gateway.json")
    sinks = [read_json(place / "sink.json")["listen"] for place in cluster.local.sink_parts]
    for address in (gateway["listen"], gateway["control"], *sinks):
        for noise in NONSENSE.values():
            with closing(connected(address)) as peer, suppress(ConnectionError):
                peer.sendall(noise)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65_536):  # until they have hung up: a peer like that is not kept
                    pass
    cluster.until_done(source)
    assert {part: cluster.restarts(part) for part in restarts} == restarts
    everything_is_there_once_and_in_order(cluster)
    for part in ("gateway", "sink-0", "sink-1"):
        status = Path(f"/proc/{cluster.supervisor.pid(part)}/status").read_text()
        assert int(status.split("VmHWM:")[1].split()[0]) < 400_000, f"{part} took more memory than it has a use for"


def test_i3_no_transaction_id_is_used_for_two_contents_and_an_aborted_one_is_never_committed(cluster: Cluster) -> None:
    seen = 0
    for sink, path in cluster.txnlogs().items():
        voted: set[str] = set()
        aborted: set[str] = set()
        for entry in read_journal(path):
            txn = str(entry["txn"])
            transaction = TransactionId.parse(txn)
            assert transaction is not None
            assert transaction.sink == sink
            if entry["op"] == "phase1":
                assert txn not in voted, "one name, two contents"
                voted.add(txn)
            if not entry.get("vote", True) or not entry.get("commit", True):
                aborted.add(txn)
            if entry.get("commit"):
                assert txn not in aborted
        seen += len(voted)
    assert seen >= len(SINKS) * len(cluster.inputs)


def test_i5_a_record_is_in_exactly_one_epoch(cluster: Cluster) -> None:
    records = cluster.rounds().read_all()
    epochs = sorted(records)
    assert epochs == list(range(epochs[0], epochs[-1] + 1))
    for epoch in epochs[1:]:
        assert records[epoch].first == records[epoch - 1].last
        assert records[epoch].last > records[epoch].first
    assert records[epochs[-1]].last == cluster.status()["committed_end"]


def test_i4_a_message_id_is_acknowledged_when_its_epoch_is_committed(cluster: Cluster) -> None:
    """At the end, the positions that the gateway reports equal those of the last round record."""
    last = cluster.rounds().read_all()[cluster.log().committed]
    cluster.until(lambda: cluster.status()["committed_end"] == last.last, "the last acknowledgement")
    assert cluster.status()["epoch"] == last.epoch
