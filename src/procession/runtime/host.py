"""The host of a process: files, listening sockets, clocks and randomness, in one value that callers pass.

Invariant: code that takes a host uses the machine only through it and through asyncio's event loop. `HOST` is this
machine; the simulator makes a host for each simulated process. A call through a host has no extra cost.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from procession.address import Address, listening_file, listening_socket
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES


@dataclass(frozen=True, slots=True)
class Host:
    files: FileSystem = HOST_FILES
    listen: Callable[[Address, Address | None], socket.socket] = listening_socket
    """Returns a socket that listens at an address. Port 0 takes the previous address, if it is free."""
    listen_at_file: Callable[[Path], socket.socket] = listening_file
    monotonic_s: Callable[[], float] = time.monotonic
    wall_clock_s: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits
    """Returns a random number of this many bits."""
    has_replicas: bool = False
    """Whether changes of files are complete only when replicas have them, too."""
    unreplicated_bytes: Callable[[], int] = lambda: 0
    """Returns the bytes of changes that are on their way to the replicas, if there are any."""


HOST = Host()
"""The host of code that gets no other host."""
