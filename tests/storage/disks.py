"""Disks that fail: a file-size limit on this process, and a file system of a few pages where one may be mounted."""

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
    """Writes beyond `bytes_max` of any file fail, after the part that still fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def tiny_disk(size: str = "64k") -> Iterator[Path]:
    """A real file system that is soon full; skips the test where this user may not mount one."""
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
