"""What is freed and taken again at once costs pages only the first time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS, BLOCKS, BLOCK_BYTES = 20, 8, 1024 * 1024

PROGRAM = f"""
import resource
from procession.allocation import keep_memory
keep_memory()
for _ in range({ROUNDS}):
    blocks = [bytearray({BLOCK_BYTES}) for _ in range({BLOCKS})]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt, resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library does as it likes")
def test_blocks_that_were_freed_are_used_again_without_fresh_pages() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    faults, page_bytes = map(int, output.split())
    assert faults < ROUNDS * BLOCKS * BLOCK_BYTES // page_bytes // 2
