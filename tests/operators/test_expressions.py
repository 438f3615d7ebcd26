"""Column expressions give the same over columns as for each record, including Python's error messages."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark import cloudpickle

from procession import Pipeline, PlanError, col, struct
from procession.operators.column_stages import computed, kept_rows
from procession.operators.column_values import NotColumnar, as_objects
from procession.operators.expressions import Expression
from procession.planner.effects import changes_nothing, returns_own_objects
from procession.planner.fingerprints import fingerprint

KIND = pa.struct(
    [
        *(("n", pa.int64()), ("m", pa.int8()), ("x", pa.float64()), ("s", pa.string()), ("t", pa.string())),
        *(("b", pa.bool_()), ("c", pa.bool_()), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())),
        *(("price", pa.decimal128(8, 2)), ("big", pa.uint64())),
    ]
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

integers = st.one_of(
    st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1])
)
floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 1.0, 1e308, 2.0**53, 2.0**63])
)
texts = st.one_of(st.sampled_from(["", "a", "b", "é", "\U0001f600", "\x00"]), st.text(max_size=3))
records = st.fixed_dictionaries(
    {
        "n": st.none() | integers,
        "m": st.none() | st.integers(-128, 127),
        "x": st.none() | floats,
        "s": st.none() | texts,
        "t": st.none() | texts,
        "b": st.none() | st.booleans(),
        "c": st.none() | st.booleans(),
        "at": st.none() | st.integers(-(10**10), 10**10).map(lambda second: NOON + timedelta(seconds=second)),
        "day": st.none() | st.dates(),
        "price": st.none() | st.decimals(-1000, 1000, places=2),
        "big": st.none() | st.integers(0, 2**64 - 1),
    }
)
numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from([col("n"), col("m"), col("x")]),
        st.builds(
            lambda sign, a, b: operation(sign, a, b),
            st.sampled_from(["+", "-", "*", "/", "//", "%"]),
            numbers,
            operands,
        ),
    )
)
operands = numbers | integers | floats
flags = st.deferred(
    lambda: st.one_of(
        st.sampled_from(
            [col("b"), col("c"), col("at") > NOON, col("day") <= date(2026, 3, 1), col("s").is_in(["", "a"])]
        ),
        st.sampled_from([col("n").is_in([0, 1, 2**63 - 1]), col("x").is_null(), (col("s") + col("t")).is_null()]),
        st.builds(operation, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers, operands),
        st.builds(
            operation, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.just(col("s")), texts | st.just(col("t"))
        ),
        st.builds(operation, st.sampled_from(["&", "|", "==", "!="]), flags, flags),
        flags.map(lambda flag: ~flag),
    )
)
expressions = st.one_of(
    numbers,
    flags,
    st.sampled_from([col("s"), col("at"), col("day"), col("price"), col("big"), col("s") + "!" + col("t")]),
    st.builds(lambda a, b: struct(first=a, second=b, third=1, fourth=col("at")), numbers, flags),
)


def operation(sign: str, left: Any, right: Any) -> Any:
    return eval(f"left {sign} right", {"left": left, "right": right})


def by_record(expression: Expression, given_records: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, str]]]:
    values, errors = [], []
    for row, record in enumerate(given_records):
        try:
            values.append((row, expression(record)))
        except Exception as error:
            errors.append((row, repr(error)))
    return values, errors


def by_columns(expression: Expression, given_records: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, str]]]:
    found = computed(expression, pa.array(given_records, KIND))
    values = found.values if isinstance(found.values, list) else as_objects(found.values)
    rows = range(len(given_records)) if found.rows is None else found.rows
    return list(zip(rows, values, strict=True)), [(row, repr(error)) for row, error in found.errors]


@given(expressions, st.lists(records, max_size=12))
@example(col("n") * 2, [{"n": 2**62}, {"n": 1}])
@example(col("n") // col("m"), [{"n": -(2**63), "m": -1}, {"n": 7, "m": -2}, {"n": 1, "m": 0}])
@example(col("n") == col("x"), [{"n": 2**53 + 1, "x": 2.0**53}])
@example(col("n") / col("m"), [{"n": 2**63 - 1, "m": 3}])
@example(col("x") * 1e308, [{"x": 1e308}])
def test_an_expression_gives_the_same_over_columns_as_for_each_record(
    expression: Expression, given_records: list[dict[str, Any]]
) -> None:
    whole = [{field.name: record.get(field.name) for field in KIND} for record in given_records]
    try:
        expression.type_in(KIND)
    except NotColumnar:
        return
    assert repr(by_columns(expression, whole)) == repr(by_record(expression, whole))


@given(flags, st.lists(records, max_size=12))
def test_a_filter_keeps_the_same_rows(expression: Expression, given_records: list[dict[str, Any]]) -> None:
    kept = [row for row, value in by_record(expression, given_records)[0] if value]
    assert kept_rows(computed(expression, pa.array(given_records, KIND))).tolist() == kept


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (col("none") > 1, "the records have no field 'none'"),
        (col("price") * 2, r"\* of decimal128\(8, 2\) and int64 is not computed on columns"),
        (col("price") > Decimal("1.5"), r"Decimal\('1.5'\) has no column"),
        (col("s") > 1, "> of string and int64 is not computed on columns"),
        (~col("n"), "~ of int64 is not computed on columns"),
        (col("x").is_in([1.5]), "is_in of double with these values is not computed on columns"),
        (col("n") > 2**80, f"{2**80} has no column"),
    ],
)
def test_an_expression_that_cannot_use_columns_says_why(expression: Expression, reason: str) -> None:
    with pytest.raises(NotColumnar, match=reason):
        expression.type_in(KIND)


def test_the_text_of_an_expression_is_its_source() -> None:
    shown = str(struct(a=(col("n") + 1) * 2, b=~col("b") & col("s").is_in(["a"]) | col("x").is_null()))
    assert shown == "struct(a=((col('n') + 1) * 2), b=((~col('b') & col('s').is_in(['a'])) | col('x').is_null()))"
    assert str(1 - col("n")) == "(1 - col('n'))"


@pytest.mark.parametrize("wrong", [lambda: col("a") and col("b"), lambda: 0 < col("a") < 9, lambda: not col("a")])  # type: ignore[redundant-expr]
def test_words_for_and_or_not_are_refused_with_the_signs_for_them(wrong: Any) -> None:
    with pytest.raises(PlanError, match="has no truth value before there are records") as caught:
        wrong()
    assert "& | ~ instead of and, or, not" in caught.value.next_step


@pytest.mark.parametrize("wrong", [lambda: col("a") > None, lambda: col("a") - [], lambda: col(7), lambda: struct()])
def test_other_parts_of_expressions_are_refused(wrong: Any) -> None:
    with pytest.raises(PlanError):
        wrong()


def test_an_expression_is_known_to_change_nothing_and_to_be_the_same_in_another_process() -> None:
    made = [struct(a=col("n") > limit) for limit in (1, 1, 2)]
    assert changes_nothing(made[0])
    assert returns_own_objects(made[0])
    first, same, other = map(fingerprint, made)
    assert first == same != other


def test_an_expression_can_be_pickled() -> None:
    made = struct(a=(col("n") + 1) * 2, b=~col("b") | col("s").is_in(["a"]), c=col("x").is_null())
    shipped = cloudpickle.loads(cloudpickle.dumps(made))
    record = {"n": 1, "b": True, "s": "a", "x": None}
    assert shipped(record) == made(record) == {"a": 4, "b": True, "c": True}
    assert str(shipped) == str(made)


def test_an_expression_is_a_function_wherever_a_stage_takes_one() -> None:
    from procession.testing import run

    pipeline = Pipeline("p", parallelism=2)
    plain = pipeline.source("plain", codec="json")
    plain.filter(col("n") > 1).reduce(lambda before, _: before, key=col("k")).sink("o", to="file:o")
    found = run(pipeline, {"plain": [{"k": "a", "n": n} for n in range(4)]}, epochs=1)
    assert found["o"] == [{"k": "a", "n": 2}] * 2
