"""Runs blocks of seeds in several processes, and provides clocks and random generators.

Invariant: results come in the order of the seeds, whatever the number of processes. The processes end with their
parent, even if the parent is killed. `sim/runner` and `sim/lost_machine_runs` define the work of a block.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from typing import TypeVar

BLOCK_RUNS = 100
"""Seeds per block. Garbage is collected after each block. An interrupt waits for the current blocks."""

Result = TypeVar("Result")

now_s, cpu_s = time.monotonic, time.process_time


def seeded(seed: int) -> random.Random:
    """Return a generator that depends only on the seed."""
    return random.Random(seed)


def cores() -> int:
    """Return the number of useful processes on this machine."""
    return len(os.sched_getaffinity(0))


@contextmanager
def run_blocks(seeds: range, jobs: int, run_block: Callable[[range], Result]) -> Iterator[Iterator[Result]]:
    """Yield the results of the blocks of these seeds, in order."""
    run = partial(_frozen_after, run_block)
    if jobs == 1 or len(seeds) <= BLOCK_RUNS:
        gc.collect()
        gc.freeze()  # excludes the many imported objects from garbage collection
        try:
            yield map(run, _blocks(seeds))
        finally:
            gc.unfreeze()
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin)
    try:
        # Only this process handles SIGINT. The workers inherit SIG_IGN and finish their blocks.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        done = pool.map(run, _blocks(seeds))
        signal.signal(signal.SIGINT, before)
        yield done
    finally:
        pool.shutdown(cancel_futures=True)


def _frozen_after(run_block: Callable[[range], Result], seeds: range) -> Result:
    """Run a block in a worker process. The remaining objects are caches for all runs (`MEMORY`). They are frozen, so
    that the garbage collector does not scan an ever larger number of them."""
    done = run_block(seeds)
    gc.freeze()
    return done


def _blocks(seeds: range) -> Iterator[range]:
    return (seeds[number : number + BLOCK_RUNS] for number in range(0, len(seeds), BLOCK_RUNS))


def _begin() -> None:
    threading.Thread(target=_end_with_parent, name="end with the parent", daemon=True).start()
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """End this process when its parent ends, even if the parent is killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
