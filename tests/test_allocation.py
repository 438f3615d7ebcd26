"""Freed memory that is allocated again soon costs page faults only the first time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from procession.allocation import ARROW_VARIABLE

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


ARROW_PROGRAM = """
import resource, sys, time
from procession.__main__ import main
sys.argv = ["procession", "--help"]
try:
    main()
except SystemExit:
    pass
import pyarrow as pa
def epoch():
    buffers = [pa.allocate_buffer(300_000) for _ in range(20)]
    for buffer in buffers:
        view = memoryview(buffer).cast("B")[::4096]
        view[:] = bytes(len(view))
epoch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    epoch()
    time.sleep(0.15)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, file=sys.stderr)
"""


def arrow_faults(**environment: str) -> int:
    """Return the page faults of buffers that are freed and allocated again after a pause, as from epoch to epoch."""
    program = [sys.executable, "-c", ARROW_PROGRAM]
    others = {name: value for name, value in os.environ.items() if name != ARROW_VARIABLE}
    return int(subprocess.run(program, check=True, capture_output=True, env=others | environment).stderr)


def test_arrow_uses_freed_buffers_again_after_a_pause_unless_the_user_says_otherwise() -> None:
    assert arrow_faults() < arrow_faults(**{ARROW_VARIABLE: "0"}) / 50
