"""Hostile peers connect to a sink: an honest worker's rounds are still voted on and committed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from procession.address import Address
from procession.sdk.doubles import Worker
from procession.sdk.sink_server import ACCEPTS_AT_ONCE
from procession.wire import two_phase_commit, v3
from procession.wire.messages import Hello, ListUncommitted
from tests import hostile

HELLO = v3.encode(Hello(v3.SINK_VERSION, b"", "test", "hostile"))
SESSIONS_MAX = 32
LINGERING_MAX = 16
UNCOUNTED = 2 * ACCEPTS_AT_ONCE
"""Connections that are accepted in this turn of the sink's loop, or were closed in the last one."""
FILES_OF_NEW_INSTANCES = 2
"""The transaction logs that a sink keeps open: one of the new worker's instance and one of the attack's."""
GROWTH_BYTES_MAX = 48 * 1024 * 1024
DEADLINE_S = 30.0

PROGRAM = f"""
import sys
from pathlib import Path
from procession.address import Address, address_of, listening_socket
from procession.sdk import sink_server
from procession.sdk.participant import SinkParticipant
from procession.sdk.connector_program import run_program
from procession.sdk.doubles import MemoryOutput
from procession.sdk.transaction_log import TransactionLog

def open_participant(instance, wait):
    txnlog = TransactionLog(Path(sys.argv[1]) / f"{{instance}}.txnlog")
    txnlog.open()
    return SinkParticipant(MemoryOutput(), txnlog, wait=wait)

server = sink_server.SinkServer(
    open_participant, sessions_max={SESSIONS_MAX}, lingering_max={LINGERING_MAX}, handshake_timeout_s=2.0
)
with listening_socket(Address("127.0.0.1", 0)) as listener:
    print(address_of(listener).port, file=sys.stderr, flush=True)
    run_program(server.serve(listener))
"""


class Honest:
    """An honest worker that runs one round after the other, each with a byte that is voted for and committed."""

    def __init__(self, worker: Worker) -> None:
        self.committed = 0
        self._worker = worker

    async def goes_on(self, rounds: int = 3) -> None:
        async with asyncio.timeout(DEADLINE_S):
            for position in range(self.committed, self.committed + rounds):
                self._worker.data(position, b"x")
                assert await self._worker.phase1(f"t{position}", position, position + 1)
                await self._worker.phase2(f"t{position}", commit=True)
                self.committed += 1


@asynccontextmanager
async def sink_process(directory: Path) -> AsyncIterator[tuple[int, Address]]:
    arguments = (sys.executable, "-c", PROGRAM, str(directory))
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stderr
        yield process.pid, Address("127.0.0.1", int(await process.stderr.readline()))
        assert process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def admitted(address: Address) -> None:
    """Check that a new worker is admitted.

    The crowd may fill the sink between its connection and its HELLO, and then the sink closes the oldest silent
    connections first, which may include this one. It reconnects, as every worker of ours does.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with await Worker.connect(address) as newcomer:
                with suppress(AssertionError, OSError):
                    await newcomer.hello(instance="newcomer")
                    return


async def until(is_so: Callable[[], bool]) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + DEADLINE_S
    while not is_so() and clock() < deadline:  # noqa: ASYNC110  another process is watched: there is no event
        await asyncio.sleep(0.01)
    return is_so()


ATTACKS: dict[str, hostile.Attack] = {
    "opened and dropped": hostile.opened_and_dropped(2_000),
    "slow loris": hostile.slow_loris,
    "strangers": hostile.strangers,
    "two HELLOs": hostile.greeted_twice,
    "never reading": hostile.never_reading(two_phase_commit.wrap(ListUncommitted(1))),
    "half open": hostile.half_open,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_worker_is_served_during_an_attack_and_no_connection_of_the_attack_remains(
    tmp_path: Path, name: str
) -> None:
    asyncio.run(worker_under(ATTACKS[name], tmp_path))


async def worker_under(attack: hostile.Attack, directory: Path) -> None:
    async with sink_process(directory) as (pid, address), await Worker.connect(address) as worker:
        await worker.hello()
        honest = Honest(worker)
        await honest.goes_on()

        async def at_height() -> None:
            await honest.goes_on()
            await admitted(address)
            assert hostile.sockets(pid) <= held + SESSIONS_MAX + LINGERING_MAX + UNCOUNTED + FILES_OF_NEW_INSTANCES

        held, memory = hostile.sockets(pid), hostile.memory_bytes(pid)
        await attack(address, HELLO, at_height)
        await honest.goes_on()
        assert await until(lambda: hostile.sockets(pid) <= held + FILES_OF_NEW_INSTANCES), "left open"
        assert hostile.memory_bytes(pid) - memory < GROWTH_BYTES_MAX
