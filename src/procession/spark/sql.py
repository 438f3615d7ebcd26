"""SQL: a user's `transform`, a function from DataFrame to DataFrame, on the records of one epoch.

Invariant: Spark SQL may return rows in any order and any number. Each row keeps its order key, and the rows are
sorted by it afterwards. So records are written as runs before and after the transform, as at any exchange. The tasks
of the previous level feed it; the tasks of the transform's chain read its result.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql.types import StringType

from procession.errors import PlanError, ProcessionError
from procession.operators.stage_rows import ordinals
from procession.operators.value_codec import BYTES, TEXT
from procession.planner.graph import Kind, Node
from procession.planner.keys import KeyCodec, of_bytes
from procession.planner.plan import Plan, PlannedChain
from procession.record import COLUMNS, ORDER
from procession.spark.exchange import map_in_arrow, physical_plan
from procession.spark.log_source import attempt_of
from procession.spark.manifest_routing import RoutedManifest, loaded, slots
from procession.spark.plan_check import check_sql
from procession.spark.tasks import Task
from procession.storage.inline_runs import CellStore, batches_in
from procession.storage.run_store import Manifest, Run, RunStore

CHILD = "child"
"""An optional column of the function's result: the order of the rows that come from one record."""

BEHIND_SQL = 5000
"""The manifests of a transform's result are published under this number plus the number of their chain."""

FAILURE = "failure"
ROW = "run string, cell binary"
"""Schema of rows that carry a run, or a cell of a run, to Spark SQL or back."""

WIDTHS = {"payload": "binary", "key": "binary"}


def sql_levels(plan: Plan) -> list[int]:
    """Return the levels that have a transform."""
    return sorted({chain.level for chain in plan.chains if _is_sql(plan, chain)})


def through_sql(
    spark: SparkSession, task: Task, level: int, envelopes: Sequence[RoutedManifest]
) -> list[RoutedManifest]:
    """Run the transforms of a level. Return the envelopes for their tasks with the results in place of the input."""
    plan = task.plan
    if any(envelope.is_failed for envelope in envelopes):
        return list(envelopes)
    changed: list[RoutedManifest] = []
    by_chain: dict[int, list[RoutedManifest]] = {
        chain.number: [] for chain in plan.at_level(level) if _is_sql(plan, chain)
    }
    for envelope in envelopes:
        chain = slots(plan, level)[envelope.slot][0] if envelope.level == level else None
        (changed if chain is None or chain not in by_chain else by_chain[chain]).append(envelope)
    for number, chain_envelopes in by_chain.items():
        first = slots(plan, level).index((number, 0))
        numbered = [(envelope.slot - first, envelope) for envelope in chain_envelopes]
        runs, store = _transformed(spark, task, plan.chains[number], numbered)
        lowest = min(envelope.chain for envelope in chain_envelopes)
        for envelope in chain_envelopes:
            if envelope.piece == 0:
                # Each task still gets an envelope from every task before it; the first one holds the whole result.
                is_first = (envelope.partition, envelope.chain) == (0, lowest)
                run = runs.get(envelope.slot - first) if is_first else None
                changed += loaded([replace(envelope, run=run, cell=None, pieces=1)], store)
    return changed


def _is_sql(plan: Plan, chain: PlannedChain) -> bool:
    return chain.root is not None and plan.node(chain.root).kind is Kind.TRANSFORM


def _transformed(
    spark: SparkSession, task: Task, chain: PlannedChain, envelopes: Sequence[tuple[int, RoutedManifest]]
) -> tuple[dict[int, Run], RunStore | CellStore]:
    """Run one transform. Return the runs of its result by bucket, and the store that holds them."""
    plan, root = task.plan, chain.root
    assert root is not None
    node = plan.node(root)
    edge = next(edge for edge in plan.edges if edge.after == root)
    keys = len(plan.keys[root]) - 1 if edge.is_merged else 1
    written = [(bucket, json.dumps(asdict(item.run)), item.cell) for bucket, item in envelopes if item.run is not None]
    named = spark.createDataFrame(written, f"at int, {ROW}").repartitionById(chain.tasks, "at")
    order = [f"{ORDER}{place}" for place in range(keys)]
    schema = ", ".join(f"{name} {WIDTHS.get(name, 'bigint')}" for name in ["payload", *COLUMNS, *order])
    answer = _answer(node, map_in_arrow(named, ReadRuns(task), schema))
    needed = ["payload", *order, *(COLUMNS if _shown_behind(plan, root) else ())]
    back = _checked(answer, node.name, needed)
    # All rows of a record go to one task, chosen by the record's sequence only. So a stage that Spark re-runs can
    # neither lose nor duplicate rows, even if the functions return different rows this time.
    back = back.withColumn("at", F.expr(f"cast(pmod(coalesce({ORDER}0, 0), {chain.tasks}) as int)"))
    stored = map_in_arrow(back.repartitionById(chain.tasks, "at"), StoreRows(task, chain.number, keys), ROW)
    with _function_errors(node.name):
        executed = physical_plan(stored)
        check_sql(plan, node.name, executed, tasks=chain.tasks, reader=ReadRuns.__name__, writer=StoreRows.__name__)
        found = [(json.loads(row["run"]), row["cell"]) for row in stored.collect()]
    store = task.driver_store()
    for run, cell in found:
        if FAILURE in run:
            raise ProcessionError.from_dict(run[FAILURE])
        if isinstance(store, CellStore):
            store.put(run["file"], [bytes(cell)])
    return {run["bucket"]: Run(**run) for run, _ in found}, store


def _answer(node: Node, records: DataFrame) -> Any:
    assert node.function is not None
    try:
        return node.function(records)
    except Exception as error:  # the user's code may raise anything
        raise _raised(node.name, error) from error


@contextmanager
def _function_errors(stage: str) -> Iterator[None]:
    """Raise Spark's errors about an invalid query or value as errors of the user's function.

    A failure of a worker is not the function's error, and Spark has already retried it."""
    try:
        yield
    except PySparkException as error:
        is_ours = "procession.errors." in str(error)
        if is_ours or (error.getCondition() is None and not isinstance(error, PythonException)):
            raise
        raise _raised(stage, error) from error


def _raised(stage: str, error: Exception) -> PlanError:
    first = next(iter(str(error).strip().splitlines()), "")
    return PlanError(
        f"transform {stage!r} failed: {type(error).__name__}: {first}",
        next_step="fix the function; for records that it cannot process, use try_cast or coalesce, or filter them out"
        " before it. Nothing of this epoch is committed; the next start runs it again",
        stage=stage,
        trace="".join(traceback.format_exception(error)),
    )


def _shown_behind(plan: Plan, index: int) -> bool:
    """Return whether a later stage also gets the records' metadata."""
    behind = set(plan.graph.children(index))
    while more := {child for stage in behind for child in plan.graph.children(stage)} - behind:
        behind |= more
    return bool(behind & plan.shown)


def _checked(answer: Any, stage: str, needed: Sequence[str]) -> DataFrame:
    if not isinstance(answer, DataFrame):
        raise PlanError(
            f"transform {stage!r} returned {type(answer).__name__}", next_step="return a DataFrame", stage=stage
        )
    missing = [name for name in needed if name not in answer.columns]
    if missing:
        raise PlanError(
            f"transform {stage!r} returned a DataFrame without {', '.join(missing)}",
            next_step="keep these columns: those that begin with 'order_' contain a row's position; or use"
            " map_batches, which keeps rows in order",
            stage=stage,
        )
    for name in needed:
        kind = answer.schema[name].dataType.simpleString()
        wanted = ("string", "binary") if name == "payload" else (WIDTHS.get(name, "bigint"),)
        if kind not in wanted:
            raise PlanError(
                f"transform {stage!r} returned the column {name} as {kind}, not as {' or '.join(wanted)}",
                next_step=f"cast it: df.withColumn({name!r}, df[{name!r}].cast({wanted[0]!r}))"
                if name == "payload"
                else "return the column unchanged",
                stage=stage,
            )
    form = TEXT if isinstance(answer.schema["payload"].dataType, StringType) else BYTES
    chosen = [*needed, *([CHILD] if CHILD in answer.columns else [])]
    return (
        answer.select(*chosen)
        .withColumn("payload", F.col("payload").cast("binary"))
        .withColumn("form", F.lit(form).cast("int"))
    )


class ReadRuns:
    """Reads runs in Spark's workers and passes their rows to Spark SQL."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        epoch = attempt_of(context, self._task, 0).epoch
        store, keys = self._task.store(), KeyCodec(self._task.graph.types)
        for batch in batches:
            for text, cell in zip(batch.column("run").to_pylist(), batch.column("cell").to_pylist(), strict=True):
                for rows in store.read(epoch, Run(**json.loads(text))) if cell is None else batches_in(cell):
                    names = [name for name in rows.schema.names if name != "form"]
                    shown = {name: _signed(rows.column(name)) for name in _ordered(names)}
                    yield pa.record_batch({**shown, "key": keys.shown(rows.column("key"))})


def _ordered(names: Sequence[str]) -> list[str]:
    return ["payload", *COLUMNS, *(name for name in names if name.startswith(ORDER))]


def _signed(column: pa.Array) -> pa.Array:
    """Reinterpret unsigned integers as signed, because Spark has no unsigned types. The way back reverses it."""
    return column.view(pa.int64()) if column.type == pa.uint64() else column


class StoreRows:
    """Sorts the transform's result in Spark's workers and stores it as a run for one task of the transform's chain."""

    def __init__(self, task: Task, chain: int, keys: int) -> None:
        self._task = task
        self._chain = chain
        self._keys = keys

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        bucket = context.partitionId()
        attempt = attempt_of(context, self._task, bucket)
        stage = BEHIND_SQL + self._chain
        store = self._task.store()
        writer = store.writer(attempt.epoch, stage, bucket, attempt.number)
        root = self._task.plan.chains[self._chain].root
        assert root is not None
        node = self._task.plan.node(root)
        pieces = list(batches)
        try:
            if pieces:
                writer.add(node.id, placed(_whole(pa.concat_batches(pieces), node.name), self._keys), bucket)
            for run in writer.publish(Manifest(attempt.epoch, stage, bucket, 0, 0)).runs:
                for cell in store.cells(run) if isinstance(store, CellStore) else [None]:
                    yield _row(asdict(run), cell)
        except ProcessionError as error:
            yield _row({FAILURE: error.as_dict()}, None)


def _row(run: dict[str, Any], cell: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"run": [json.dumps(run)], "cell": pa.array([cell], pa.binary())})


def _whole(rows: pa.RecordBatch, stage: str) -> pa.RecordBatch:
    """Return the rows. Raise PlanError if one has no payload or no order key."""
    for name in rows.schema.names:
        if (name == "payload" or name.startswith(ORDER)) and rows.column(name).null_count:
            raise PlanError(
                f"transform {stage!r} returned a row whose {name} is null",
                next_step="filter such rows out, or give them a payload; a row that an outer join made without a record"
                " has no position in the order",
                stage=stage,
            )
    return rows


def placed(rows: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    """Sort the rows by their order key; rows of one record by `child`, if that column exists, then by payload.

    So the result does not depend on the order in which Spark returned the rows. Each row gets its number among the
    rows of its record."""
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
    if "key" in more:
        more["key"] = of_bytes(more["key"])
    return pa.record_batch(
        {
            "payload": rows.column("payload"),
            **{name: rows.column(name) for name in order},
            f"{ORDER}{keys}": pa.array(children),
            "form": rows.column("form").cast(pa.uint8()),
            **more,
        }
    )
