"""SQL: a user's `transform`, a function from DataFrame to DataFrame, on the records of one epoch.

The one rule: rows may come back from Spark SQL in any order and any number, but each brings its order key along, and is
put in its place by it. So records are written as runs before and behind it, as at any exchange: what is in between is
Spark's. Before it the tasks of the level before; after it the tasks of the transform's chain.
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
from procession.spark.manifest_routing import Parcel, loaded, slots
from procession.spark.plan_check import check_sql
from procession.spark.tasks import Task
from procession.storage.inline_runs import CellStore, batches_in
from procession.storage.run_store import Manifest, Run, RunStore

CHILD = "child"
"""A column of this name, if the function gives one, says in which order the rows that it made of one record come."""

BEHIND_SQL = 5000
"""Manifests of what came back are published under the number of their chain and this."""

FAILURE = "failure"
ROW = "run string, cell binary"
"""A run on its way to Spark SQL or back, or a cell of it."""

WIDTHS = {"payload": "binary", "key": "binary"}


def sql_levels(plan: Plan) -> list[int]:
    """The levels that have a transform."""
    return sorted({chain.level for chain in plan.chains if _is_sql(plan, chain)})


def through_sql(spark: SparkSession, task: Task, level: int, parcels: Sequence[Parcel]) -> list[Parcel]:
    """Run the transforms of a level: the parcels for their tasks hold what came back, instead of what went in."""
    plan = task.plan
    if any(parcel.is_failed for parcel in parcels):
        return list(parcels)
    changed: list[Parcel] = []
    own: dict[int, list[Parcel]] = {chain.number: [] for chain in plan.at_level(level) if _is_sql(plan, chain)}
    for parcel in parcels:
        chain = slots(plan, level)[parcel.slot][0] if parcel.level == level else None
        (changed if chain is None or chain not in own else own[chain]).append(parcel)
    for number, mine in own.items():
        first = slots(plan, level).index((number, 0))
        runs, store = _transformed(spark, task, plan.chains[number], [(one.slot - first, one) for one in mine])
        lowest = min(parcel.chain for parcel in mine)
        for parcel in mine:
            if parcel.piece == 0:
                # Each task still gets a parcel from every task before it; one of them has all that came back.
                is_first = (parcel.partition, parcel.chain) == (0, lowest)
                run = runs.get(parcel.slot - first) if is_first else None
                changed += loaded([replace(parcel, run=run, cell=None, pieces=1)], store)
    return changed


def _is_sql(plan: Plan, chain: PlannedChain) -> bool:
    return chain.root is not None and plan.node(chain.root).kind is Kind.TRANSFORM


def _transformed(
    spark: SparkSession, task: Task, chain: PlannedChain, parcels: Sequence[tuple[int, Parcel]]
) -> tuple[dict[int, Run], RunStore | CellStore]:
    """The runs of what came back, by bucket, and where they are."""
    plan, root = task.plan, chain.root
    assert root is not None
    node = plan.node(root)
    edge = next(edge for edge in plan.edges if edge.after == root)
    keys = len(plan.keys[root]) - 1 if edge.is_merged else 1
    written = [(bucket, json.dumps(asdict(one.run)), one.cell) for bucket, one in parcels if one.run is not None]
    named = spark.createDataFrame(written, f"at int, {ROW}").repartitionById(chain.tasks, "at")
    order = [f"{ORDER}{place}" for place in range(keys)]
    schema = ", ".join(f"{name} {WIDTHS.get(name, 'bigint')}" for name in ["payload", *COLUMNS, *order])
    answer = _answer(node, map_in_arrow(named, Unroll(task), schema))
    needed = ["payload", *order, *(COLUMNS if _shown_behind(plan, root) else ())]
    back = _checked(answer, node.name, needed)
    # All that was made of a record goes to one task, by its sequence and by nothing else: so a stage that Spark runs
    # again, with functions that give other rows this time, can neither lose nor double any.
    back = back.withColumn("at", F.expr(f"cast(pmod(coalesce({ORDER}0, 0), {chain.tasks}) as int)"))
    stored = map_in_arrow(back.repartitionById(chain.tasks, "at"), Store(task, chain.number, keys), ROW)
    with _told(node.name):
        executed = physical_plan(stored)
        check_sql(plan, node.name, executed, tasks=chain.tasks, inlet=Unroll.__name__, outlet=Store.__name__)
        found = [(json.loads(row["run"]), row["cell"]) for row in stored.collect()]
    store = task.store()
    for told, cell in found:
        if FAILURE in told:
            raise ProcessionError.from_dict(told[FAILURE])
        if isinstance(store, CellStore):
            store.put(told["file"], [bytes(cell)])
    return {run["bucket"]: Run(**run) for run, _ in found}, store


def _answer(node: Node, records: DataFrame) -> Any:
    assert node.function is not None
    try:
        return node.function(records)
    except Exception as error:  # the user's code may raise anything
        raise _raised(node.name, error) from error


@contextmanager
def _told(stage: str) -> Iterator[None]:
    """What Spark says of a query that cannot be right, or of a value that it cannot take, is the function's error; what
    befell a worker is not, and has been tried again already."""
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
        next_step="mend the function; or, where a record cannot be taken, give it another value there (try_cast,"
        " coalesce) or filter it out before. Nothing of this epoch was committed, and it is run again when you start"
        " again",
        stage=stage,
        trace="".join(traceback.format_exception(error)),
    )


def _shown_behind(plan: Plan, index: int) -> bool:
    """Whether a stage behind this one is shown what records have beside their payload."""
    behind = set(plan.graph.children(index))
    while more := {child for one in behind for child in plan.graph.children(one)} - behind:
        behind |= more
    return bool(behind & plan.shown)


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
    for name in needed:
        kind = answer.schema[name].dataType.simpleString()
        wanted = ("string", "binary") if name == "payload" else (WIDTHS.get(name, "bigint"),)
        if kind not in wanted:
            raise PlanError(
                f"transform {stage!r} gave back the column {name} as {kind}, which is not {' or '.join(wanted)}",
                next_step=f"cast it: df.withColumn({name!r}, df[{name!r}].cast({wanted[0]!r}))"
                if name == "payload"
                else "carry the column along as it came",
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
        store, keys = RunStore(self._task.runs_directory), KeyCodec(self._task.graph.types)
        for batch in batches:
            for text, cell in zip(batch.column("run").to_pylist(), batch.column("cell").to_pylist(), strict=True):
                for rows in store.read(epoch, Run(**json.loads(text))) if cell is None else batches_in(cell):
                    names = [name for name in rows.schema.names if name != "form"]
                    shown = {name: _signed(rows.column(name)) for name in _ordered(names)}
                    yield pa.record_batch({**shown, "key": keys.shown(rows.column("key"))})


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


def _row(told: dict[str, Any], cell: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"run": [json.dumps(told)], "cell": pa.array([cell], pa.binary())})


def _whole(rows: pa.RecordBatch, stage: str) -> pa.RecordBatch:
    """The rows, if each has a payload and knows its place."""
    for name in rows.schema.names:
        if (name == "payload" or name.startswith(ORDER)) and rows.column(name).null_count:
            raise PlanError(
                f"transform {stage!r} gave back a row without {name}: it is null",
                next_step="filter such rows out, or give them a payload; a row that an outer join made of no record has"
                " no place in the order",
                stage=stage,
            )
    return rows


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
