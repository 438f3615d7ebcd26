"""The performer writes one request after the other, also if a caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from procession.gateway.gateway_directory import SNAPSHOT, load_snapshot
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.performer import GatewayPerformer
from procession.runtime.host import Host
from procession.runtime.host_files import HostFileSystem


class HeldRenames(HostFileSystem):
    """Files on which every rename of a snapshot waits until the test releases it."""

    def __init__(self) -> None:
        self.begun = 0
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def rename(self, old: Path, new: Path) -> None:
        if new.name == SNAPSHOT:
            self.begun += 1
            self.has_begun.set()
            self.may_go.wait()
        super().rename(old, new)


def test_a_write_whose_request_is_cancelled_ends_before_the_next_begins(tmp_path: Path) -> None:
    """The control port cancels a request whose connection timed out, and the driver then sends another one."""
    files = HeldRenames()

    async def cancel_one() -> None:
        gateway = GatewayPerformer(GatewayConfig(tmp_path), Host(files=files))
        first = asyncio.create_task(gateway.fence(1))
        await asyncio.to_thread(files.has_begun.wait)
        first.cancel()
        second = asyncio.create_task(gateway.fence(2))
        try:
            for _ in range(10):  # turns of the loop in which the second write would start
                await asyncio.sleep(0)
            assert not first.done()
        finally:
            files.may_go.set()
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], asyncio.CancelledError)
        assert gateway.state.snapshot.fence == 1, "the state of the disk is known"
        await second
        await gateway.close()

    asyncio.run(cancel_one())
    assert files.begun == 2
    found = load_snapshot(tmp_path)
    assert found is not None
    assert found.fence == 2
