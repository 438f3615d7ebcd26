"""The plan check compares the plan that Spark would really run with ours, for our own jobs and for a user's SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession import Pipeline, PlanError
from procession.errors import ProcessionError
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.spark.plan_check import check_paths, check_sql, parse_plan
from tests.operators.reference import batch_of
from tests.spark.cluster import written
from tests.spark.spark import Session, failures, run_on_spark, session

PHYSICAL = """\
MapInArrow Hop(at#3, envelope#4)#5, [at#6, envelope#7], false
+- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#3), 3), REPARTITION_BY_NUM, [plan_id=152]
   +- MapInArrow Hop(at#0, envelope#1)#2, [at#3, envelope#4], false
      +- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 4), REPARTITION_BY_NUM, [plan_id=1]
         +- *(1) Project [at#0, envelope#1]
            +- MicroBatchScan[at#0, envelope#1] (Python)
"""


LEVELS = range(1, 3)


def is_kept(value: bytes) -> bool:
    return value != b"3"


def last_digit(value: bytes) -> bytes:
    return value[-1:]


def two_exchanges() -> Plan:
    pipeline = Pipeline("p")
    stage = pipeline.source().filter(is_kept).rebalance(name="spread", parallelism=4)
    stage.rebalance(last_digit, parallelism=3).sink("out", to="file:out")
    return make_plan(pipeline.graph())


def test_the_exchanges_of_the_plan_and_no_others_are_accepted() -> None:
    check_paths(two_exchanges(), PHYSICAL, LEVELS)


@pytest.mark.parametrize(
    "planted",
    [
        PHYSICAL.replace("at#3), 3)", "at#3), 2)"),
        PHYSICAL.replace(
            "shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 4)", "hashpartitioning(at#0, 4)"
        ),
        PHYSICAL.replace("*(1) Project [at#0, envelope#1]", "Exchange RoundRobinPartitioning(4), REPARTITION_BY_NUM"),
        PHYSICAL.replace("*(1) Project [at#0, envelope#1]", "AQEShuffleRead coalesced"),
        PHYSICAL.replace("*(1) Project [at#0, envelope#1]", "Coalesce 1"),
        PHYSICAL.replace("REPARTITION_BY_NUM, [plan_id=1]", "ENSURE_REQUIREMENTS, [plan_id=1]"),
        PHYSICAL.replace("shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 4)", "SinglePartition"),
        "AdaptiveSparkPlan isFinalPlan=false\n+- " + PHYSICAL.replace("\n", "\n   "),
        "\n".join(PHYSICAL.splitlines()[2:]),
        "+- ReusedExchange [at#0], Exchange SinglePartition",
        "something that is not understood",
    ],
)
def test_an_exchange_that_the_plan_does_not_know_is_refused(planted: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_paths(two_exchanges(), planted, LEVELS)
    assert caught.value.next_step
    assert isinstance(ProcessionError.from_dict(caught.value.as_dict()), PlanError)


ONE_TASK = """\
MapInArrow Hop(at#0, envelope#1)#2, [at#3, envelope#4], false
+- Exchange SinglePartition, REPARTITION_BY_NUM, [plan_id=16]
   +- *(1) Scan ExistingRDD[at#0,envelope#1]
"""


def into_one() -> Pipeline:
    pipeline = Pipeline("one", parallelism=4)
    pipeline.source().filter(is_kept).rebalance(parallelism=1).map(bytes).sink("out", to="file:out")
    return pipeline


def test_an_exchange_into_one_task_is_accepted_unless_spark_added_it() -> None:
    plan = make_plan(into_one().graph())
    check_paths(plan, ONE_TASK, [1])
    with pytest.raises(PlanError):
        check_paths(plan, ONE_TASK.replace("REPARTITION_BY_NUM", "ENSURE_REQUIREMENTS"), [1])


# A user's SQL

SQL = """\
MapInArrow Store(payload#7, order_0#8, at#9)#10, [run#11], false
+- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#9), 2), REPARTITION_BY_NUM, [plan_id=253]
   +- *(6) Project [payload#7, order_0#8, cast(pmod(order_0#8, 2) as int) AS at#9]
      +- *(6) SortMergeJoin [key#5], [key#33], Inner
         :- *(3) Sort [key#5 ASC NULLS FIRST], false, 0
         :  +- Exchange hashpartitioning(key#5, 2), ENSURE_REQUIREMENTS, [plan_id=239]
         :     +- *(2) Filter (payload#7 = a text
+- with newlines)
         :        +- MapInArrow Unroll(at#0, run#1)#2, [payload#7, key#5, order_0#8], false
         :           +- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 2), REPARTITION_BY_NUM
         :              +- *(1) Scan ExistingRDD[at#0,run#1]
         +- *(5) HashAggregate(keys=[key#33], functions=[])
            +- Exchange hashpartitioning(key#33, 2), ENSURE_REQUIREMENTS, [plan_id=245]
               +- *(4) Scan ExistingRDD[key#33]
"""


def check(executed: str, *, strict: bool = False) -> None:
    pipeline = Pipeline("p", strict=strict)
    pipeline.source().transform(bytes, name="mine").sink("out", to="file:out")
    check_sql(make_plan(pipeline.graph()), "mine", executed, tasks=2, reader="Unroll", writer="Store")


def test_the_text_of_a_plan_is_parsed_into_its_tree() -> None:
    root = parse_plan(SQL)
    assert root is not None
    join = root.children[0].children[0].children[0]
    assert (join.name, [child.name for child in join.children]) == ("SortMergeJoin", ["Sort", "HashAggregate"])
    assert [operator.name for operator in root.above("Unroll")] == [
        "MapInArrow",
        "Exchange",
        "Project",
        "SortMergeJoin",
        "Sort",
        "Exchange",
        "Filter",
    ]


def test_between_its_two_exchanges_spark_may_move_a_transforms_rows_and_tables_may_be_aggregated() -> None:
    check(SQL)


@pytest.mark.parametrize(
    "planted",
    [
        SQL.replace("(at#9), 2)", "(at#9), 3)"),
        SQL.replace("(at#0), 2)", "(at#0), 3)"),
        SQL.replace("Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#9), 2)", "Coalesce 2"),
        SQL.replace("Unroll", "Other"),
        SQL.replace("*(3) Sort", "*(3) SortAggregate"),
        SQL.replace("*(4) Scan ExistingRDD[key#33]", "MapInArrow Unroll(x)\n" + 18 * " " + "+- ReusedExchange [at#0]"),
        "Coalesce 1\n+- " + SQL.replace("\n", "\n   "),
        "AdaptiveSparkPlan isFinalPlan=false\n+- " + SQL.replace("\n", "\n   "),
        "something that is not understood",
    ],
)
def test_a_transform_that_stands_otherwise_than_the_plan_has_it_is_refused(planted: str) -> None:
    assert planted != SQL
    with pytest.raises(PlanError) as caught:
        check(planted)
    assert "mine" in caught.value.sentence
    assert caught.value.next_step


def test_with_strict_a_shuffle_on_the_way_of_the_records_is_refused_and_one_of_a_table_is_not() -> None:
    with pytest.raises(PlanError, match="hashpartitioning"):
        check(SQL, strict=True)
    check(SQL.replace("Exchange hashpartitioning(key#5, 2)", "Project [key#5]"), strict=True)


# On real Spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Session]:
    with session("local[2,2]") as spark:
        yield spark


def test_a_query_that_spark_would_change_while_it_runs_is_refused_before_a_record_is_read(
    spark: Session, tmp_path: Path
) -> None:
    batch = batch_of([b"%d" % number for number in range(30)])
    plan = make_plan(into_one().graph())
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        epochs = run_on_spark(spark, plan, batch, [], tmp_path / "adaptive", __name__)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    (failure,) = failures(epochs)
    assert "AdaptiveSparkPlan" in failure["sentence"]
    assert len(epochs) == 1
    # As it should be, the same plan runs, and into one task, too.
    epochs = run_on_spark(spark, plan, batch, [7], tmp_path / "plain", __name__)
    assert failures(epochs) == []
    wanted = b"".join(b"%d\n" % number for number in range(30) if number != 3)
    assert written(plan, tmp_path / "plain" / "runs", epochs) == {"out": wanted}
