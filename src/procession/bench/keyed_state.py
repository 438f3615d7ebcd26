"""Compares keyed state: Procession's, a plain dictionary, and Spark's `transformWithState` on rows and on pandas.

All variants count the records of each key and append the count to each record. They read the same log, alternately, for
several rounds, with one task per core; the result is the median. The dictionary is a plain loop in one process on one
core, which reads the log and writes its output. Our output is ordered and is compared with the loop's output byte for
byte; for Spark's variants only the counts are compared. Each state is committed with its epoch: ours with a round
record, Spark's in RocksDB.

Ours and Spark's run in two processes, each with a suitable Spark session: ours as `procession run` sets it up, with the
JVM's quick compiler and a file system that RocksDB cannot use; Spark's with RocksDB and the JVM's optimizing compiler.
While one is measured, the other is idle. Warm-up epochs and the first epoch of each run are not timed. There are no
producers, gateways or sinks.

Then an epoch that updates a few keys is measured, out of a million and out of ten thousand keys.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from procession.bench import spark_state
from procession.bench.listing1 import COMPILE_QUICKLY, MEMORY, until_over
from procession.bench.our_state import DIGITS, EpochClock, EpochCosts, EpochEnds, KeyedPipeline, plain_loop, write_log
from procession.bench.spark_state import KEY_BYTES
from procession.errors import StorageError
from procession.spark import session

VARIANTS = ("ours", "dictionary", "spark_rows", "spark_pandas")
OF_SPARK = frozenset({"spark_rows", "spark_pandas"})
TOUCHED = (1_000, 10_000, 100_000)
FEW_EPOCHS = 8
WARM_RECORDS = 5_000
"""Number of records in each warm-up epoch before the timed ones, while the JVM compiles."""
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class KeyedStateSetup:
    """The options of the measurement. Spark's states are measured only in the first `spark_rounds` (0: not at all),
    because they take most of the time."""

    keys: int
    records: int
    rounds: int
    spark_rounds: int
    epoch_records: int
    many_keys: int
    warm_epochs: int
    cores: int


def measure(setup: KeyedStateSetup) -> dict[str, Any]:
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=place) as name:
        work = Path(name)
        warm = _written(work / "warm", setup.keys, (setup.keys, *[WARM_RECORDS] * setup.warm_epochs))
        first = max(setup.keys, setup.epoch_records)
        whole, rest = divmod(setup.records, setup.epoch_records)
        ends = _written(work / "log", setup.keys, (first, *[setup.epoch_records] * whole, *([rest] if rest else ())))
        plain_loop(work / "log", work / "expected", ends)
        of_spark = OF_SPARK if setup.spark_rounds else ()
        opened = _process(_open_sparks, setup.cores) if of_spark else nullcontext(_no_process)
        with _process(_open_ours, setup.cores) as ours, opened as sparks:
            homes: dict[str, Callable[..., Any]] = {"ours": ours} | dict.fromkeys(of_spark, sparks)
            for variant, home in homes.items():
                home(_run, variant, setup.cores, _folder(work, f"warm-{variant}"), warm, None)
            found: dict[str, list[EpochCosts]] = defaultdict(list)
            for number in range(setup.rounds):
                # The order of variants alternates, so that background load affects all of them alike.
                for variant in VARIANTS[number % 4 :] + VARIANTS[: number % 4]:
                    if variant == "dictionary":
                        found[variant].append(plain_loop(work / "log", work / "again", ends))
                    elif variant not in OF_SPARK or number < setup.spark_rounds:
                        folder = _folder(work, f"{number}-{variant}")
                        took = homes[variant](_run, variant, setup.cores, folder, ends, work / "expected")
                        found[variant].append(took)
            of = [(TOUCHED[0], setup.keys), *((touched, setup.many_keys) for touched in TOUCHED)]
            touching = [ours(_few, min(touched, keys), keys, setup.cores, work) for touched, keys in of]
    return {**_figures(found, setup.records), "keys": setup.keys, "records": setup.records, "touched": touching}


def _figures(found: Mapping[str, list[EpochCosts]], records: int) -> dict[str, Any]:
    ratios = [bare.seconds / ours.seconds for ours, bare in zip(found["ours"], found["dictionary"], strict=True)]
    rates = {
        variant: {
            "records_per_second": records / statistics.median(result.seconds for result in found[variant]),
            "cpu_us_per_record": statistics.median(result.used_s for result in found[variant]) / records * 1e6,
        }
        for variant in VARIANTS
        if variant in found
    }
    return {**rates, "ours_to_dictionary": statistics.median(ratios)}


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for variant in filter(figures.__contains__, VARIANTS):
        rate, used = figures[variant]["records_per_second"], figures[variant]["cpu_us_per_record"]
        yield f"{variant:12} {rate:11,.0f} records/s, {1e6 / rate:6.2f} µs a record, {used:6.2f} µs of processor time"
    yield f"ours / dictionary {figures['ours_to_dictionary']:.2f}, with {figures['keys']:,} keys"
    for result in figures["touched"]:
        yield (
            f"an epoch that touches {result['keys']:,} keys of {result['of']:,}:"
            f" {result['epoch_ms']:.0f} ms, {result['written_bytes']:,.0f} bytes of states"
        )


def _written(log: Path, keys: int, epochs: tuple[int, ...]) -> EpochEnds:
    """Write a log for epochs of these sizes, and return it. The first epoch has every key."""
    ends = np.cumsum(epochs)
    numbers = np.arange(ends[-1], dtype=np.uint64)
    write_log(log, _scattered(numbers, keys), numbers)
    return EpochEnds(tuple(ends.tolist()), log)


def _scattered(numbers: npt.NDArray[np.uint64], keys: int) -> npt.NDArray[np.uint64]:
    """Return every key in turn, in an unpredictable order."""
    return numbers % np.uint64(keys) * np.uint64(7_919) % np.uint64(keys)


def _folder(work: Path, name: str) -> Path:
    (work / name).mkdir()
    return work / name


def _no_process(*_: object) -> None:
    raise AssertionError("Spark's states are not measured")


# In separate processes

_spark: SparkSession
"""The Spark of this process."""


@contextmanager
def _process(opens: Callable[[int], None], cores: int) -> Iterator[Callable[..., Any]]:
    """Yield a process with its own Spark session. It runs functions and returns their results."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), opens, (cores,))
    try:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
        pool.submit(_close).result()
    finally:
        pool.shutdown()


def _open_ours(cores: int) -> None:
    global _spark
    _spark = session.open_session("bench", cores)


def _open_sparks(cores: int) -> None:
    """Open both sessions. In Spark's session rows pass through Java, and RocksDB needs another file system than
    ours."""
    changed: Any = tuple(option for option in session.JAVA_OPTIONS if option != COMPILE_QUICKLY)
    session.JAVA_OPTIONS = changed
    session.SETTINGS = (
        *(setting for setting in session.SETTINGS if setting[0] != "spark.hadoop.fs.file.impl"),
        ("spark.sql.streaming.stateStore.providerClass", ROCKS, "transformWithState works with no other"),
    )
    _open_ours(cores)
    _spark.conf.set("spark.sql.shuffle.partitions", str(cores))


def _close() -> None:
    _spark.stop()


def _run(variant: str, cores: int, folder: Path, ends: EpochEnds, expected: Path | None) -> EpochCosts:
    """Return the times of one run of one variant, without its first epoch. Raises StorageError if its output is
    wrong."""
    clock = EpochClock(len(ends.ends))
    if variant == "ours":
        with KeyedPipeline(_spark, ends.log, folder, cores) as ours:
            ours.run(ends, clock)
        if expected is not None and (folder / "output").read_bytes() != expected.read_bytes():
            raise StorageError("the output differs from that of the loop")
    else:
        query = spark_state.start_query(
            _spark,
            variant,
            ends.log,
            ends,
            tasks=cores,
            output=folder,
            checkpoint=folder / "checkpoint",
            on_epoch=lambda records: clock.epoch(),
        )
        until_over(query, clock.is_over)
        _check_counts(folder, ends)
    return clock.costs()


def _check_counts(folder: Path, ends: EpochEnds) -> None:
    """Raise StorageError unless each key has all of its records, each with a different count. Their order is not
    checked."""
    seen = Counter(
        line[:KEY_BYTES] + line[DIGITS:]
        for path in folder.glob("[0-9]*-[0-9]*")
        for line in path.read_bytes().splitlines()
    )
    if len(seen) != ends.ends[-1] or max(seen.values()) != 1:
        raise StorageError(f"{seen.total():,} records came out with {len(seen):,} counts, not {ends.ends[-1]:,}")


def _few(touched: int, keys: int, cores: int, work: Path) -> dict[str, float]:
    """Measure an epoch that updates `touched` of `keys` keys."""
    folder = _folder(work, f"{touched}-of-{keys}")
    first = np.arange(keys, dtype=np.uint64)
    spread = np.arange(touched, dtype=np.uint64) * np.uint64(keys // touched)
    rest = np.concatenate([(spread + np.uint64(number)) % np.uint64(keys) for number in range(FEW_EPOCHS)])
    write_log(folder / "log", np.concatenate((first, rest)), np.arange(keys + len(rest), dtype=np.uint64))
    ends = EpochEnds((keys, *(keys + touched * (number + 1) for number in range(FEW_EPOCHS))), folder / "log")
    clock = EpochClock(len(ends.ends))
    with KeyedPipeline(_spark, ends.log, folder, cores) as ours:
        ours.run(ends, clock)
        # The first two epochs after the large one include one-time work. Files are merged only occasionally, so the
        # mean is used.
        return {
            "keys": touched,
            "of": keys,
            "epoch_ms": float(np.median(np.diff(clock.ends_s)[2:])) * 1e3,
            "written_bytes": statistics.mean(ours.written_bytes[3:]),
        }
