"""Measures the cost of replicas: for a gateway without and with two replicas, in turn, and for a durable file.

The same frames go to a gateway until all of them are synced: on its disk, or on its disk and both replicas. Everything
is on this machine, so the replicas take their share of its processors. The producer's frames are encoded beforehand.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from procession.address import Address, address_of, listening_socket
from procession.bench.gateway_throughput import (
    MEMORY,
    WARM_BYTES_MAX,
    WARM_RECORDS,
    WARM_STREAM,
    encoded,
    forked,
    produce,
    running,
    until,
)
from procession.bench.processes import cpu_tree_s
from procession.deployment.local_pipeline import COMMAND
from procession.gateway.control_client import ControlClient
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sos.replicated_host import replicated_host
from procession.sos.replicated_volume import ReplicaOptions
from procession.sos.sos_client import SosClient, SosUnreachable
from procession.storage.durable import write_durably

REPLICAS = 2
SECRET = b"bench"
FILES = 200
FILE_BYTES = 200
LIMIT = 1 << 40


class ReplicaProcess(NamedTuple):
    pid: int
    address: Address
    directory: Path


class GatewayIntake(NamedTuple):
    """The costs of one round."""

    seconds: float
    gateway_cpu_s: float
    replicas_cpu_s: float
    replicated_bytes: int
    """Bytes written on one replica."""


def measure(records: int, rounds: int, directory: Path | None) -> dict[str, Any]:
    place = directory or (MEMORY if MEMORY.is_dir() else None)
    load = encoded(1, records)
    found: dict[int, list[GatewayIntake]] = {0: [], REPLICAS: []}
    for _ in range(rounds):
        for replicas, intakes in found.items():
            with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=place) as work:
                intakes.append(_intake(Path(work), load, records, replicas))
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=place) as work:
        plain_ms, replicated_ms = _durable_files(Path(work))
    size = len(load)
    plain, ours = found[0], found[REPLICAS]
    return {
        "plain_mb_s": size / statistics.median(intake.seconds for intake in plain) / 1e6,
        "replicated_mb_s": size / statistics.median(intake.seconds for intake in ours) / 1e6,
        "share": statistics.median(bare.seconds / whole.seconds for bare, whole in zip(plain, ours, strict=True)),
        "plain_gateway_ns_byte": 1e9 * statistics.median(intake.gateway_cpu_s for intake in plain) / size,
        "gateway_ns_byte": 1e9 * statistics.median(intake.gateway_cpu_s for intake in ours) / size,
        "replica_ns_byte": 1e9 * statistics.median(intake.replicas_cpu_s for intake in ours) / REPLICAS / size,
        "replicated_bytes_per_byte": statistics.median(intake.replicated_bytes for intake in ours) / size,
        "plain_file_ms": plain_ms,
        "replicated_file_ms": replicated_ms,
    }


def report_lines(figures: Mapping[str, float]) -> Iterator[str]:
    yield (
        f"gateway: {figures['plain_mb_s']:.0f} MB/s without replicas, {figures['replicated_mb_s']:.0f} MB/s with"
        f" {REPLICAS}; share {figures['share']:.2f}"
    )
    yield (
        f"processor time a byte: gateway {figures['plain_gateway_ns_byte']:.1f} ns without,"
        f" {figures['gateway_ns_byte']:.1f} ns with replicas; each replica {figures['replica_ns_byte']:.1f} ns"
    )
    yield f"bytes on a replica per byte ingested: {figures['replicated_bytes_per_byte']:.2f}"
    yield f"a file written durably: {figures['plain_file_ms']:.2f} ms, {figures['replicated_file_ms']:.2f} ms"


def _intake(work: Path, load: memoryview, records: int, replicas: int) -> GatewayIntake:
    (work / "gateway").mkdir()
    with ExitStack() as stack:
        services = [stack.enter_context(replica(work / str(number))) for number in range(replicas)]
        options = ["--lag-bytes-max", str(4 * len(load) + WARM_BYTES_MAX)]
        if services:
            (work / "secret").write_bytes(SECRET)
            options += ["--replicas", ",".join(str(service.address) for service in services)]
            options += ["--replica-volume", "v", "--replica-cookie-file", str(work / "secret")]
        gateway = stack.enter_context(running(str(work / "gateway"), *options))
        client = ControlClient(work / "gateway", b"", 60.0)

        def send(load: memoryview, count: int, stream_id: int) -> tuple[Any, list[Any]]:
            return forked(lambda load, _: produce(gateway.address, load, count, stream_id), [load])

        start, warming = send(encoded(WARM_STREAM, WARM_RECORDS), WARM_RECORDS, WARM_STREAM)
        start.set()
        until(lambda: client.status()["is_columnar"])
        start, sending = send(load, records, 1)
        until(lambda: client.status()["streams_total"] == 2)
        client.offer(1, 0, LIMIT, LIMIT)
        before = cpu_tree_s(gateway.pid), sum(cpu_tree_s(service.pid) for service in services)
        stored = _stored(services)
        start.set()
        began = time.perf_counter()
        until(lambda: client.status()["next_sequence"] == WARM_RECORDS + records)
        client.offer(1, 0, LIMIT, LIMIT)
        took_s = time.perf_counter() - began
        after = cpu_tree_s(gateway.pid), sum(cpu_tree_s(service.pid) for service in services)
        stored = _stored(services) - stored
    for sender in warming + sending:
        sender.join()
    return GatewayIntake(took_s, after[0] - before[0], after[1] - before[1], stored)


def _stored(services: list[ReplicaProcess]) -> int:
    return sum(path.stat().st_size for service in services[:1] for path in service.directory.rglob("*.object"))


@contextmanager
def replica(directory: Path) -> Iterator[ReplicaProcess]:
    directory.mkdir()
    secret = directory.with_suffix(".secret")
    secret.write_bytes(SECRET)
    with listening_socket(Address("127.0.0.1", 0)) as listener:
        address = address_of(listener)
    command = [*COMMAND, "sos", "--dir", str(directory), "--listen", str(address), "--cookie-file", str(secret)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: _answers(address))
            yield ReplicaProcess(process.pid, address, directory)
        finally:
            process.terminate()


def _answers(address: Address) -> bool:
    async def ask() -> None:
        (await SosClient.open(address, SECRET)).close()

    try:
        asyncio.run(ask())
    except SosUnreachable:
        return False
    return True


def _durable_files(work: Path) -> tuple[float, float]:
    """Return the milliseconds for a small durable file, without and with replicas."""
    with ExitStack() as stack:
        services = [stack.enter_context(replica(work / str(number))) for number in range(REPLICAS)]
        options = ReplicaOptions(tuple(service.address for service in services), REPLICAS, SECRET)
        host = stack.enter_context(replicated_host(work / "replicated", "v", options))
        (work / "plain").mkdir()
        plain, ours = [], []
        for _ in range(FILES):
            plain.append(_written_s(work / "plain" / "file", HOST_FILES))
            ours.append(_written_s(work / "replicated" / "file", host.files))
    return 1e3 * statistics.median(plain), 1e3 * statistics.median(ours)


def _written_s(path: Path, files: FileSystem) -> float:
    began = time.perf_counter()
    write_durably(path, b"x" * FILE_BYTES, files)
    return time.perf_counter() - began
