"""A pipeline in this process: every kind of stage, errors, tables, event time; for any epochs and tasks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from procession import Context, Pipeline, Stage, aggregates, tables, windows
from procession.errors import PlanError, ProcessionError, RecordError, RoundError, UsageError
from procession.testing import Outputs, Record, run

CUTS: tuple[Any, ...] = (None, 1, [2, 0, 1])
TASKS = (1, 3)


def alike(pipeline: Pipeline, inputs: Any, **options: Any) -> Outputs:
    """Return the output of the pipeline, after checking that it is the same for any epochs and tasks."""
    found = [run(pipeline, inputs, epochs=epochs, parallelism=tasks, **options) for epochs in CUTS for tasks in TASKS]
    assert all(result.bytes == found[0].bytes for result in found)
    assert all(output == found[0] for output in found)
    return found[0]


def through(stages: Callable[[Stage], Stage], values: list[Any], **options: Any) -> list[Any]:
    """Return the output of these stages, in JSON."""
    pipeline = Pipeline("through")
    stages(pipeline.source("in", codec="json")).sink("out", to="file:out")
    return alike(pipeline, {"in": values}, **options)["out"]


async def asked(value: int) -> int:
    await asyncio.sleep(0)
    return value * 10


def capitals(batch: pa.RecordBatch) -> pa.Array:
    return pc.utf8_upper(batch.column("payload").cast(pa.string()))


def remainder(value: int) -> int:
    return value % 2


def doubled(value: int, context: Context) -> list[Any]:
    return [value, context.key, context.event_time]


NUMBERS = [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    ("stages", "result"),
    [
        (lambda stage: stage.map(lambda n: n + 1), [4, 2, 5, 2, 6]),
        (lambda stage: stage.filter(lambda n: n > 1), [3, 4, 5]),
        (lambda stage: stage.flat_map(range), [0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4]),
        (lambda stage: stage.map_async(asked, concurrency=2), [30, 10, 40, 10, 50]),
        (lambda stage: stage.peek(str), NUMBERS),
        (lambda stage: stage.rebalance().map(lambda n: -n), [-3, -1, -4, -1, -5]),
        (lambda stage: stage.rebalance(remainder).map(lambda n: -n), [-3, -1, -4, -1, -5]),
        (lambda stage: stage.merge(stage.map(lambda n: -n)), [-3, 3, -1, 1, -4, 4, -1, 1, -5, 5]),
        (lambda stage: stage.key_by(remainder).map(doubled), [[3, 1, 0], [1, 1, 0], [4, 0, 0], [1, 1, 0], [5, 1, 0]]),
        (lambda stage: stage.add_timestamps(float).map(doubled).map(lambda found: found[2] // 10**9), NUMBERS),
        (
            lambda stage: stage.map_stateful(lambda s, n: (s + n, s + n), key=remainder, initial=0),
            [3, 4, 4, 5, 10],
        ),
        (
            lambda stage: stage.filter_stateful(lambda s, n: (n, s is None or n > s), key=remainder, initial=None),
            [3, 4, 5],
        ),
        (
            lambda stage: stage.flat_map_stateful(lambda s, n: ([*s, n], [*s, n]), key=remainder, initial=[]),
            [3, 3, 1, 4, 3, 1, 1, 3, 1, 1, 5],
        ),
        (lambda stage: stage.reduce(max, key=remainder), [3, 3, 4, 3, 5]),
        (lambda stage: stage.rolling(aggregates.count(), key=remainder), [1, 2, 1, 3, 4]),
        (lambda stage: stage.distinct(str), [3, 1, 4, 5]),
        (lambda stage: stage.sort(float), [1, 1, 3, 4, 5]),
        (lambda stage: stage.aggregate(aggregates.sum_of()), [{"count": 5, "value": 14}]),
        (
            lambda stage: stage.aggregate(aggregates.sum_of(), key=remainder),
            [{"key": 0, "count": 1, "value": 4}, {"key": 1, "count": 4, "value": 10}],
        ),
        (
            lambda stage: stage.window(windows.counting(2), aggregates.sum_of()).map(lambda found: found["value"]),
            [4, 5, 5],
        ),
        (
            lambda stage: stage.window(windows.tumbling(3), aggregates.collect(), time=float, lateness_s=5).map(
                lambda found: found["value"]
            ),
            [[1, 1], [3, 4, 5]],
        ),
    ],
)
def test_a_stage_has_the_same_output_as_on_spark(stages: Callable[[Stage], Stage], result: list[Any]) -> None:
    assert through(stages, NUMBERS) == result


def test_batches_of_text() -> None:
    pipeline = Pipeline("batches")
    pipeline.source("in", codec="text").map_batches(capitals).sink("out", to="file:out", codec="text")
    assert alike(pipeline, {"in": ["a", "b"]}) == {"out": ["A", "B"]}


def test_a_join_of_two_sources_pairs_them_however_they_come() -> None:
    pipeline = Pipeline("join")
    orders = pipeline.source("orders", codec="json", streams=["orders"])
    payments = pipeline.source("payments", codec="json", streams=["payments"])
    paid = orders.join(
        payments, within_s=10, join=lambda one, other: [one, other], key=lambda row: row[0], time=lambda row: row[1],
        outer=True,
    )  # fmt: skip
    paid.sink("paid", to="file:out")
    inputs = {"orders": [["a", 1], ["b", 2], ["c", 50]], "payments": [["b", 5], ["a", 9], ["c", 90]]}
    assert alike(pipeline, inputs) == {"paid": [[["b", 2], ["b", 5]], [["a", 1], ["a", 9]], [["c", 50], None]]}
    pairs = [("orders", ["a", 1]), ("payments", ["a", 2]), ("orders", ["b", 3]), ("payments", ["b", 3])]
    assert alike(pipeline, pairs) == {"paid": [[["a", 1], ["a", 2]], [["b", 3], ["b", 3]]]}


def test_states_expire_and_their_expiry_is_emitted() -> None:
    def stages(stage: Stage) -> Stage:
        return stage.map_stateful(
            lambda count, row: (count + 1, [row, count]), key=lambda row: row[0], initial=0, ttl_s=10,
            time=lambda row: row[1], on_evict=lambda key, count: ["gone", key, count],
        )  # fmt: skip

    assert through(stages, [["a", 1], ["a", 2], ["b", 40], ["a", 41]]) == [
        [["a", 1], 0],
        [["a", 2], 1],
        ["gone", "a", 2],
        [["b", 40], 0],
        [["a", 41], 0],
        ["gone", "b", 1],
        ["gone", "a", 1],
    ]


def test_tables_of_rows_and_of_files(tmp_path: Path) -> None:
    path = tmp_path / "names.jsonl"
    path.write_text('{"id": 1, "name": "one"}\n{"id": 2, "name": "two"}\n')
    for side in (tables.of_json_lines(path, by="id"), tables.of_json_lines(path, by="id", refresh=True)):
        found = through(
            lambda stage, side=side: stage.hash_join(side, key=lambda n: n, join=lambda n, row: row and row["name"]),  # type: ignore[misc]
            [2, 3, 1],
        )
        assert found == ["two", None, "one"]


def test_a_table_that_changes_is_read_again_from_the_next_epoch_on(tmp_path: Path) -> None:
    path = tmp_path / "names.jsonl"
    path.write_text('{"id": 1, "name": "old"}\n')
    pipeline = Pipeline("tables")
    source = pipeline.source("in", codec="json").peek(lambda _: path.write_text('{"id": 1, "name": "newer"}\n'))
    side = tables.of_json_lines(path, by="id", refresh=True)
    source.rebalance().hash_join(side, key=lambda n: n, join=lambda n, row: row["name"]).sink("out", to="file:out")
    assert run(pipeline, {"in": [1, 1]}, epochs=1)["out"] == ["old", "newer"]


def test_streams_are_put_in_the_order_of_event_time_whatever_came_first() -> None:
    pipeline = Pipeline("times", order_by="event_time", late="dead-letter", dead_letter="file:dead")
    pipeline.source("in", codec="text", streams=["a", "b"]).sink("out", to="file:out")
    a = [Record("a1", event_time=1), Record("a4", event_time=4), Record("a2, late", event_time=2)]
    b = [Record("b2", event_time=2), Record("b3", event_time=3)]
    found = alike(pipeline, {"in": {"a": a, "b": b}})
    assert found["out"] == ["a1", "b2", "b3", "a4"]
    assert [letter["message_id"] for letter in found["dead-letter"]] == [3]
    assert alike(pipeline, {"in": {"b": b, "a": a}}).bytes == found.bytes
    waiting = run(pipeline, {"in": {"a": a, "b": []}}, ends=False)
    assert waiting["out"] == []  # nothing came from b


def test_a_key_and_a_time_that_a_record_comes_with_reach_the_functions() -> None:
    pipeline = Pipeline("keys")

    def described(value: str, context: Context) -> str:
        return f"{value} {context.key!r} {context.event_time}"

    pipeline.source("in", codec="text").map(described).sink("out", to="file:out")
    inputs = {"in": [Record("x", key="k", event_time=1.5), "y"]}
    assert alike(pipeline, inputs)["out"] == ["x b'k' 1500000000", "y b'' 0"]


def test_sinks_have_their_own_codecs_framing_and_connections() -> None:
    pipeline = Pipeline("sinks")
    source = pipeline.source("in", codec="json")
    source.sink("json", to="file:out")
    source.map(lambda pair: f"{pair[0]}={pair[1]}").sink("raw", to="file:out", codec="text", framing="raw")
    source.map(tuple).sink("packed", to="file:out", codec="msgpack", framing="raw")
    source.key_by(lambda pair: pair[0]).sink("parted", to="file:out", order="key", connections=2)
    found = alike(pipeline, {"in": [["a", 1], ["b", 2], ["a", 3]]})
    assert found["json"] == found["packed"] == [["a", 1], ["b", 2], ["a", 3]]
    assert found["raw"] == ["a=1", "b=2", "a=3"]
    assert found.bytes["raw"] == b"a=1b=2a=3"
    assert found.bytes["json"] == b'["a",1]\n["b",2]\n["a",3]\n'
    assert sorted(found["parted.0"] + found["parted.1"]) == [["a", 1], ["a", 3], ["b", 2]]


def test_output_that_the_sinks_codec_cannot_decode_stays_bytes() -> None:
    pipeline = Pipeline("bytes")
    pipeline.source("in").sink("out", to="file:out", codec="text")
    assert run(pipeline, {"in": [b"\xff", b"a"]}) == {"out": [b"\xff", "a"]}


def failing(**options: Any) -> Pipeline:
    pipeline = Pipeline("failing", **options)
    pipeline.source("in", codec="json").rebalance().map(lambda n: 10 // n, name="divide").sink("out", to="file:out")
    return pipeline


def test_a_function_that_raises_stops_the_run_and_names_the_stage_the_record_and_the_input() -> None:
    with pytest.raises(RecordError, match="stage 'divide' raised on message 2 of stream") as caught:
        run(failing(), {"in": [5, 0, 2]})
    assert (caught.value.stage, caught.value.message_id) == ("divide", 2)
    notes = "\n".join(caught.value.__notes__)
    assert "is source 'in'" in notes
    assert "ZeroDivisionError" in notes


def test_a_function_that_raises_gives_a_dead_letter_in_its_place() -> None:
    found = alike(failing(dead_letter="file:dead"), {"in": [5, 0, 2, 0]})
    assert found["out"] == [2, 5]
    assert [(letter["stage"], letter["message_id"]) for letter in found["dead-letter"]] == [
        ("divide", 2),
        ("divide", 4),
    ]
    assert found.counters["dead_letters"] == 2
    assert [json.loads(line) for line in found.bytes["dead-letter"].splitlines()] == found["dead-letter"]


def test_a_payload_that_the_codec_of_the_source_refuses_is_the_record_s_error() -> None:
    assert alike(failing(dead_letter="file:dead"), {"in": [b"{", 5]})["out"] == [2]


def test_too_many_dead_letters_are_an_error_as_in_production() -> None:
    pipeline = failing(dead_letter="file:dead")
    with pytest.raises(PlanError, match="1,000 of 1,000 records were set aside"):
        run(pipeline, {"in": [0] * 1000})
    assert len(run(pipeline, {"in": [0] * 1000}, dead_letter_share_max=1.0)["dead-letter"]) == 1000


def test_an_asynchronous_call_that_fails_is_reported_at_once() -> None:
    pipeline = Pipeline("calls")

    async def refused(value: int) -> int:
        raise OSError("nobody there")

    pipeline.source("in", codec="json").map_async(refused).sink("out", to="file:out")
    with pytest.raises(RoundError, match="nobody there"):
        run(pipeline, {"in": [1]})


@dataclass
class Total:
    sum: int


def totals(**options: Any) -> Pipeline:
    pipeline = Pipeline("totals", **options)
    (
        pipeline.source("in", codec="json")
        .map_stateful(lambda total, n: (Total(n + (total.sum if total else 0)), n), key=lambda n: 0, initial=None)
        .sink("out", to="file:out")
    )
    return pipeline


def test_a_state_that_cannot_be_kept_is_refused_as_in_production() -> None:
    with pytest.raises(PlanError, match="has a state that cannot be stored"):
        run(totals(), {"in": [1, 2]})
    assert alike(totals(types=[Total]), {"in": [1, 2, 3]})["out"] == [1, 2, 3]


def test_states_go_through_their_encoding_between_epochs() -> None:
    seen = []

    def step(state: list[int], n: int) -> tuple[list[int], int]:
        seen.append(state)
        state.append(n)
        return state, len(state)

    pipeline = Pipeline("states")
    pipeline.source("in", codec="json").map_stateful(step, key=lambda n: 0, initial=[]).sink("out", to="file:out")
    assert run(pipeline, {"in": [1, 2, 3]}, epochs=1)["out"] == [1, 2, 3]
    assert seen == [[1], [1, 2], [1, 2, 3]]
    assert len(set(map(id, seen))) == 3


def test_without_ends_what_is_held_back_stays_out_of_the_output() -> None:
    def windowed(pipeline: Pipeline) -> Pipeline:
        source = pipeline.source("in", codec="json")
        source.window(windows.tumbling(10), aggregates.count(), time=float).map(lambda found: found["value"]).sink(
            "out", to="file:out"
        )
        return pipeline

    pipeline = windowed(Pipeline("held"))
    assert alike(pipeline, {"in": [1, 2, 11]}) == {"out": [2, 1]}
    assert alike(pipeline, {"in": [1, 2, 11]}, ends=False) == {"out": [2]}


def test_an_empty_input_has_its_totals() -> None:
    assert through(lambda stage: stage.aggregate(aggregates.count()), []) == [{"count": 0, "value": 0}]


def test_exchanges_inside_spark_s_rows_give_the_same() -> None:
    def made(exchange: Any) -> Pipeline:
        pipeline = Pipeline("cells", exchange=exchange)
        source = pipeline.source("in", codec="json")
        source.rebalance(lambda n: n % 2).flat_map(range).rolling(aggregates.sum_of(), key=lambda n: n).sink(
            "out", to="file:out"
        )
        return pipeline

    inputs = {"in": list(range(6))}
    assert alike(made("spark"), inputs).bytes == alike(made("runs"), inputs).bytes


def test_parallelism_stands_in_for_that_of_stages_too() -> None:
    def seen(parallelism: int) -> int:
        """Count the batches that come over the exchange: one from each task before it to each task after it."""
        turns: list[int] = []
        pipeline = Pipeline("tasks")
        pipeline.source("in").rebalance(bytes, parallelism=2).map_batches(
            lambda batch: (turns.append(batch.num_rows), batch.column("payload"))[1]
        ).sink("out", to="file:out", order="none")
        run(pipeline, {"in": [b"%d" % number for number in range(100)]}, parallelism=parallelism)
        return len(turns)

    assert [seen(parallelism) for parallelism in (1, 3)] == [1, 9]


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, 2000])
def test_a_parallelism_that_is_none_is_refused(parallelism: Any) -> None:
    with pytest.raises(PlanError, match="parallelism"):
        run(failing(), {"in": [1]}, parallelism=parallelism)


def test_a_transform_is_refused_with_a_sentence() -> None:
    pipeline = Pipeline("sql")
    pipeline.source("in").transform(lambda rows: rows, name="sql").sink("out", to="file:out")
    with pytest.raises(PlanError, match="stage 'sql' is a transform"):
        run(pipeline, {"in": [b"x"]})


def test_a_plan_that_cannot_be_made_is_refused_as_by_run() -> None:
    pipeline = Pipeline("endless")
    pipeline.source("in", ends=False).sort(bytes).sink("out", to="file:out")
    with pytest.raises(PlanError, match="never ends"):
        run(pipeline, {"in": [b"x"]})


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UsageError, match="no source 'out'"):
        run(failing(), {"out": [1]})


def test_nothing_is_left_behind_even_if_the_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procession.testing.in_process.MEMORY", tmp_path)
    run(failing(), {"in": [1]})
    with pytest.raises(ProcessionError):
        run(failing(), {"in": [0]})
    assert list(tmp_path.iterdir()) == []


def test_where_memory_has_no_room_files_are_where_temporary_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procession.testing.in_process.MEMORY_BYTES_MIN", 2**62)
    assert run(failing(), {"in": [5]}) == {"out": [2]}


def test_a_small_input_takes_less_than_50_ms() -> None:
    pipeline = Pipeline("quick", dead_letter="file:dead")
    source = pipeline.source("in", codec="json")
    source.rolling(aggregates.count(), key=remainder).sink("counts", to="file:out")
    source.sort(float).map(lambda n: 10 // n).sink("sorted", to="file:out")
    took_s = []
    for _ in range(5):
        start_s = time.process_time()  # not the clock: others may have the processor
        run(pipeline, {"in": NUMBERS})
        took_s.append(time.process_time() - start_s)
    assert min(took_s) < 0.05


REFUSED = ("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.system", "os.spawn")
"""The events of Python's audit hooks by which a socket is opened or a process is started."""
LOOP = "socket.__new__"
"""An event of the loop that runs coroutines: it makes a pair of sockets for itself, without an address."""

IN_PROCESS = """
import sys
from procession import Pipeline
from procession.testing import run, run_everywhere

seen = []
refused = {refused!r}
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(refused) else None)

async def asked(value):
    return value

def pipeline_of(is_async):
    pipeline = Pipeline("p")
    source = pipeline.source("in")
    source = source.map_async(asked) if is_async else source
    counted = source.rebalance().map_stateful(lambda s, v: (s, v), key=bytes, initial=0)
    counted.sink("out", to="postgres://db/shop?table=out")
    return pipeline

assert run(pipeline_of({is_async}), {{"in": [b"a"]}}) == {{"out": [b"a"]}}
run_everywhere(pipeline_of({is_async}), {{"in": [b"a", b"b"]}})
print(sorted(set(seen)), sorted({{"pyspark", "py4j", "typer", "psycopg"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(("is_async", "events"), [(False, []), (True, [LOOP])])
def test_no_socket_is_opened_no_process_is_started_and_spark_is_not_loaded(is_async: bool, events: list[str]) -> None:
    script = IN_PROCESS.format(refused=REFUSED, is_async=is_async)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert result.strip() == f"{events} []"


@pytest.mark.parametrize("line", ["import socket; socket.socket()", "import subprocess; subprocess.run(['true'])"])
def test_a_planted_socket_or_process_is_seen(line: str) -> None:
    script = IN_PROCESS.format(refused=REFUSED, is_async=True)
    script = script.replace("    return value", f"    {line}\n    return value").replace("async def", "def")
    script = script.replace("map_async", "map")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not result.startswith("[]")
