"""SQL: a user's `transform`, a function from DataFrame to DataFrame, on the records of one epoch.

The one rule: rows may come back from Spark SQL in any order and any number, but each brings its order key along, and is
put in its place by it. So records are written as runs before and behind it, as at any exchange: what is in between is
Spark's. Before it the tasks of the level before; after it the tasks of the transform's chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql.types import StringType

from procession.errors import PlanError
from procession.plan.blueprint import Plan, PlannedChain
from procession.plan.carriage import BYTES, TEXT
from procession.plan.flow import ordinals
from procession.plan.graph import Kind
from procession.record import COLUMNS, ORDER
from procession.spark.chains import Task
from procession.spark.exchange import map_in_arrow
from procession.spark.parcels import Parcel, slots
from procession.spark.reader import attempt_of
from procession.storage.runs import Manifest, Run, RunStore

CHILD = "child"
"""A column of this name, if the function gives one, says in which order the rows that it made of one record come."""

BEHIND_SQL = 5000
"""Manifests of what came back are published under the number of their chain and this."""

WIDTHS = {"payload": "binary", "key": "binary"}


def sql_levels(plan: Plan) -> list[int]:
    """The levels that have a transform."""
    return sorted({chain.level for chain in plan.chains if _is_sql(plan, chain)})


def through_sql(spark: SparkSession, task: Task, level: int, parcels: Sequence[Parcel]) -> list[Parcel]:
    """Run the transforms of a level: the parcels for their tasks hold what came back, instead of what went in."""
    plan = task.plan
    changed = {parcel: parcel for parcel in parcels}
    for chain in plan.at_level(level):
        if _is_sql(plan, chain) and not any(parcel.is_failed for parcel in parcels):
            first = slots(plan, level).index((chain.number, 0))
            mine = [parcel for parcel in parcels if parcel.level == level and 0 <= parcel.slot - first < chain.tasks]
            runs = _transformed(spark, task, chain, [(parcel.slot - first, parcel.run) for parcel in mine])
            for parcel in mine:
                # Each task still gets a parcel from every task before it; one of them has all that came back.
                is_first = parcel.partition == 0 and parcel.chain == min(other.chain for other in mine)
                changed[parcel] = replace(parcel, run=runs.get(parcel.slot - first) if is_first else None)
    return list(changed.values())


def _is_sql(plan: Plan, chain: PlannedChain) -> bool:
    return chain.root is not None and plan.node(chain.root).kind is Kind.TRANSFORM


def _transformed(
    spark: SparkSession, task: Task, chain: PlannedChain, runs: Sequence[tuple[int, Run | None]]
) -> dict[int, Run]:
    """The runs of what came back, by bucket."""
    plan, root = task.plan, chain.root
    assert root is not None
    node = plan.node(root)
    edge = next(edge for edge in plan.edges if edge.after == root)
    keys = len(plan.keys[root]) - 1 if edge.is_merged else 1
    written = [(bucket, json.dumps(asdict(run))) for bucket, run in runs if run is not None]
    named = spark.createDataFrame(written, "at int, run string").repartitionById(chain.tasks, "at")
    order = [f"{ORDER}{place}" for place in range(keys)]
    schema = ", ".join(f"{name} {WIDTHS.get(name, 'bigint')}" for name in ["payload", *COLUMNS, *order])
    assert node.function is not None
    answer = node.function(map_in_arrow(named, Unroll(task), schema))
    needed = ["payload", *order, *(COLUMNS if _shown_behind(plan, root) else ())]
    back = _checked(answer, node.name, needed)
    # All that was made of a record goes to one task, by its sequence and by nothing else: so a stage that Spark runs
    # again, with functions that give other rows this time, can neither lose nor double any.
    back = back.withColumn("at", F.expr(f"cast(pmod({ORDER}0, {chain.tasks}) as int)"))
    stored = map_in_arrow(back.repartitionById(chain.tasks, "at"), Store(task, chain.number, keys), "run string")
    found = [Run(**json.loads(row["run"])) for row in stored.collect()]
    return {run.bucket: run for run in found}


def _shown_behind(plan: Plan, index: int) -> bool:
    """Whether a stage behind this one is shown what records have beside their payload."""
    behind = set(plan.graph.children(index))
    while more := {child for one in behind for child in plan.graph.children(one)} - behind:
        behind |= more
    return any(plan.node(one).kind in (Kind.MAP_BATCHES, Kind.TRANSFORM) for one in behind)


def _checked(answer: Any, stage: str, needed: Sequence[str]) -> DataFrame:
    if not isinstance(answer, DataFrame):
        raise PlanError(
            f"transform {stage!r} gave back {type(answer).__name__}", next_step="give back a DataFrame", stage=stage
        )
    missing = [name for name in needed if name not in answer.columns]
    if missing:
        raise PlanError(
            f"transform {stage!r} gave back a DataFrame without {', '.join(missing)}",
            next_step="carry these columns along: those that begin with 'order_' say where a row belongs; or use"
            " map_batches, which keeps rows in their places by itself",
            stage=stage,
        )
    form = TEXT if isinstance(answer.schema["payload"].dataType, StringType) else BYTES
    chosen = [*needed, *([CHILD] if CHILD in answer.columns else [])]
    return (
        answer.select(*chosen)
        .withColumn("payload", F.col("payload").cast("binary"))
        .withColumn("form", F.lit(form).cast("int"))
    )


class Unroll:
    """In Spark's workers: the rows of these runs, for Spark."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        epoch = attempt_of(context, 0).epoch
        store = RunStore(self._task.runs_directory)
        for batch in batches:
            for text in batch.column("run").to_pylist():
                for rows in store.read(epoch, Run(**json.loads(text))):
                    names = [name for name in rows.schema.names if name != "form"]
                    yield pa.record_batch({name: _signed(rows.column(name)) for name in _ordered(names)})


def _ordered(names: Sequence[str]) -> list[str]:
    return ["payload", *COLUMNS, *(name for name in names if name.startswith(ORDER))]


def _signed(column: pa.Array) -> pa.Array:
    """Spark has no numbers without a sign: the same bits, and the same again on the way back."""
    return column.view(pa.int64()) if column.type == pa.uint64() else column


class Store:
    """In Spark's workers: rows that came back, in their places, as a run for one task of the transform's chain."""

    def __init__(self, task: Task, chain: int, keys: int) -> None:
        self._task = task
        self._chain = chain
        self._keys = keys

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        bucket = context.partitionId()
        attempt = attempt_of(context, bucket)
        stage = BEHIND_SQL + self._chain
        store = RunStore(self._task.runs_directory)
        writer = store.writer(attempt.epoch, stage, bucket, attempt.number)
        root = self._task.plan.chains[self._chain].root
        assert root is not None
        pieces = list(batches)
        if pieces:
            writer.add(self._task.plan.node(root).name, placed(pa.concat_batches(pieces), self._keys), bucket)
        for run in writer.publish(Manifest(attempt.epoch, stage, bucket, 0, 0)).runs:
            yield pa.record_batch({"run": [json.dumps(asdict(run))]})


def placed(rows: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    """The rows in order: by their key; those of one record by `child`, if there is one, then by their payload, so that
    it does not matter how they came. Each gets its number among those of its record."""
    order = [f"{ORDER}{place}" for place in range(keys)]
    names = rows.schema.names
    by = [*order, *([CHILD] if CHILD in names else []), "payload"]
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in by]))
    columns = [rows.column(name).to_numpy() for name in order]
    is_new = np.zeros(rows.num_rows, bool)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    children = ordinals(np.diff(np.flatnonzero(is_new), append=rows.num_rows))
    more = {name: rows.column(name) for name in COLUMNS if name in names}
    for name in ("stream_id", "message_id"):
        if name in more:
            more[name] = more[name].view(pa.uint64())
    return pa.record_batch(
        {
            "payload": rows.column("payload"),
            **{name: rows.column(name) for name in order},
            f"{ORDER}{keys}": pa.array(children),
            "form": rows.column("form").cast(pa.uint8()),
            **more,
        }
    )
