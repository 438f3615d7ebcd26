"""A plan on real Spark, without gateway and sinks: a log in, manifests out, as the conductor would have got them."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.plan.blueprint import Plan
from procession.spark.chains import Task
from procession.spark.query import ship_by_value, start_query
from procession.spark.session import open_session
from procession.storage.runs import Manifest

from .cluster import write_log

DEADLINE_S = 240


@dataclass(frozen=True)
class Cuts:
    """Offers the log in epochs that are cut here."""

    ends: tuple[int, ...]

    def next_end(self, start: int) -> int:
        return next((end for end in self.ends if end > start), start)


def run_on_spark(
    master: str, plan: Plan, batch: pa.RecordBatch, cuts: list[int], work: Path, module: str
) -> list[list[Manifest]]:
    """The manifests of all epochs. `module` has the functions of the plan."""
    write_log(work / "log", batch)
    ship_by_value(sys.modules[module])
    spark = open_session("rows", 4, master=master)
    told: list[list[Manifest]] = []
    is_over = threading.Event()

    def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
        told.append(manifests)
        if any(manifest.failure or manifest.last == batch.num_rows for manifest in manifests):
            is_over.set()

    query = start_query(
        spark,
        Task(plan, work / "log", work / "runs"),
        Cuts((*cuts, batch.num_rows)),
        checkpoint=work / "cp",
        interval_s=0,
        on_epoch=on_epoch,
    )
    threading.Thread(target=lambda: (_ended(query), is_over.set()), daemon=True).start()
    assert is_over.wait(DEADLINE_S)
    error = query.exception()
    query.stop()
    spark.stop()
    assert error is None, error
    return told


def _ended(query: Any) -> None:
    with suppress(Exception):  # what it was is asked of the query itself
        query.awaitTermination()
