"""Disks that fail: a limit on the file size of this process, and a tiny file system where one may be mounted."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def file_size_limit(bytes_max: int) -> Iterator[None]:
    """Make writes beyond `bytes_max` of any file fail, after the part that still fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def tiny_disk(size: str = "64k") -> Iterator[Path]:
    """Mount a real file system that is soon full. Skips the test if this user may not mount one."""
    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tiny", place]
        try:
            mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        if not mounted:
            pytest.skip("this user may not mount a file system")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)
