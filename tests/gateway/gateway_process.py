"""A real gateway process for a test, which may be killed and started again at the same addresses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from procession.address import Address, reserved_socket
from procession.driver.last_commit import LastCommit
from procession.errors import FencedError, RoundError
from procession.gateway.control_client import ControlClient, FenceReply
from procession.gateway.listen_address import addresses
from procession.storage.log_ranges import LogOffset
from procession.tls import ClientTls
from tests.prepared_processes import PreparedProcess

PATIENCE_S = 60.0

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

PROGRAM = """
import sys
from pathlib import Path, PosixPath
from procession.errors import ProcessionError
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.server import serve
from procession.merge.event_time import DeclaredOrder
from procession.tls import ClientTls, ServerTls

settings = eval(sys.argv[2])
limits = Limits(**settings.pop("limits", {}))
try:
    serve(GatewayConfig(Path(sys.argv[1]), "127.0.0.1:0", "127.0.0.1:0", limits, **settings))
except ProcessionError as error:
    sys.exit(error.explain())
"""


def confirm(driver: ControlClient, fence: int, offered: LogOffset) -> FenceReply:
    """Confirm the log, as a driver does that holds the fence and was offered records up to `end`."""
    return LastCommit(fence).raise_fence("gateway-0", offered, driver)


class GatewayProcess:
    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.settings = settings
        self.control_tls: ClientTls | None = settings.pop("control_tls", None)
        """The TLS settings of clients of its control port, if it uses TLS."""
        self.log = directory.with_suffix(".log")
        self.process: PreparedProcess
        self.listen = ""
        self._kept: set[Address] = set()

    def start(self, fault: str = "", *, is_confirmed: bool = True) -> GatewayProcess:
        """Start the process. Unless `is_confirmed` is False, confirm its log as a driver does, because producers wait
        for that."""
        is_known = (self.directory / "identity").exists()
        environment = {**os.environ, "PROCESSION_FAULT": fault}
        # Into a file: a pipe that nobody reads would fill up and block the gateway.
        self.process = PreparedProcess(PROGRAM, str(self.directory), repr(self.settings), env=environment, log=self.log)
        deadline = time.monotonic() + PATIENCE_S
        while self._document().get("pid") != self.process.pid:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the gateway did not start"
            time.sleep(0.01)
        self.listen = self._document()["listen"]
        if is_known and is_confirmed:
            # A fault may have killed it in the meantime, or a test's own driver has confirmed its log.
            with contextlib.suppress(RoundError, FencedError), self.client() as driver:
                confirm(driver, driver.status()["fence"], LogOffset())
        return self

    def _keep_ports(self) -> None:
        """Bind the ports while the gateway is down, so that no concurrent test gets them."""
        for door, address in addresses(self.directory).items():
            if address not in self._kept and door != "flight":
                self._kept.add(address)
                with contextlib.suppress(OSError):  # another process got the port first
                    weakref.finalize(self, os.close, reserved_socket(address).detach())

    def _document(self) -> dict[str, Any]:
        path = self.directory / "gateway.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def client(self, timeout_s: float = 10.0) -> ControlClient:
        cookie = self.settings.get("control_cookie", b"")
        return ControlClient(self.directory, cookie, timeout_s, tls=self.control_tls)

    def answer(self, ask: Callable[Parameters, Answer], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        """Return the gateway's answer to a client's call, however long it takes. Raises RoundError only if it is
        dead."""
        while True:
            try:
                return ask(*args, **kwargs)
            except RoundError:
                if self.process.poll() is not None:
                    raise

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()[0]

    def wait(self) -> tuple[int, str]:
        status = self.process.wait(PATIENCE_S)
        self._keep_ports()
        return status, self.log.read_text()

    @property
    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
