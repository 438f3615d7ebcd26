"""Generates random pipelines: any stages in any order, with branches, merges and exchanges wherever they are
allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from procession import Pipeline, ProcessContext, Stage, aggregates, patterns

EXCHANGES_MAX = 3
STREAMS = 3
FIRST_STREAM = 7


def louder(value: bytes) -> bytes:
    """Convert to capitals; raises for payloads that begin with "b"."""
    if value[:1] == b"b":
        raise ValueError(f"cannot take {value!r}")
    return value + b"!"


def is_short(value: bytes) -> bool:
    return len(value) < 6


def pieces(value: bytes) -> Any:
    """Yield two or three results for most payloads and none for an empty one; raises after the first for one with a
    blank."""
    for number in range(len(value) % 3 + 1 if value else 0):
        yield value[number:]
        if b" " in value:
            raise KeyError(value)


def reversed_row(payload: bytes) -> bytes:
    if payload == b"!":
        raise ZeroDivisionError("alone")
    return payload[::-1]


def reversed_rows(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([reversed_row(payload) for payload in batch.column("payload").to_pylist()], pa.binary())


async def asked(value: bytes) -> bytes:
    return value + b"?"


def key(value: bytes) -> bytes:
    if value == b"bad!":
        raise LookupError("no key")
    return value[:1]


def when(value: bytes) -> int:
    if value == b"cab":
        raise LookupError("no time")
    return len(value)


def counted(state: int, value: bytes) -> tuple[int, bytes]:
    """Count the record, and raise for every fifth record of a key."""
    if state % 5 == 4 and value[-1:] == b"!":
        raise ValueError(f"enough of {value!r}")
    return state + 1, value + b"#%d" % state


def remembered(state: dict[str, Any], value: bytes) -> tuple[dict[str, Any] | None, list[bytes]]:
    """Change the state in place, remove a key after four records, and raise for some with the state half changed."""
    state["seen"].append(value)
    if value[:2] == b"ab":
        raise KeyError(value)
    if len(state["seen"]) == 4:
        return None, state["seen"]
    return state, [b"%d" % len(state["seen"])] * (len(value) % 3)


def is_new(state: bytes | None, value: bytes) -> tuple[bytes, bool]:
    return value, state != value


def together(whole: bytes, value: bytes) -> bytes:
    return (whole + value)[-8:]


def waiting(state: int, value: bytes, context: ProcessContext) -> tuple[int, list[bytes]]:
    """Set a timer for each record, cancel it for some, and raise for some after a timer was set."""
    context.timer_at(len(value) + state % 4)
    if value[:2] == b"ab":
        raise KeyError(value)
    if value[-1:] == b"!":
        context.cancel_timer(len(value))
    return state + 1, [value] * (state % 2)


def waited(state: int, context: ProcessContext) -> tuple[int | None, list[bytes]]:
    """Set another timer, and remove the state for some."""
    if state % 3:
        context.timer_at(context.time + state % 3)
    return (None if state > 7 else state + 1), [b"%s@%d#%d" % (context.key, context.time, state)]


def after(latest: bytes | None, value: bytes) -> bytes:
    """Raises for some records."""
    if value[-1:] == b"?":
        raise ValueError(value)
    return value + b"<" + (latest or b"-")[-3:]


def latest_three(state: list[bytes], value: bytes) -> list[bytes]:
    """Change the state in place, and raise for some with the state half changed."""
    state.append(value)
    if value[:1] == b"c":
        raise KeyError(value)
    del state[:-3]
    return state


def ruled(state: list[bytes], value: bytes) -> bytes:
    """Change the argument."""
    state.append(value[-4:])
    return b"+".join(state)


def last_byte(value: bytes) -> int:
    return value[-1] % 7


def priced(value: bytes, version: bytes | None) -> bytes:
    return value + b"/" + (version or b"-")[-3:]


def by_length(value: bytes) -> str:
    """Return the name of an output; one that does not exist for a payload with a blank."""
    return "none" if b" " in value else ("short", "medium", "long")[min(2, len(value) // 3)]


def is_odd(value: bytes) -> bool:
    """Raises for some records."""
    if value[:1] == b"?":
        raise LookupError(value)
    return len(value) % 2 == 1


def is_longer(value: bytes, matched: dict[str, list[bytes]]) -> bool:
    return len(value) > len(matched["odd"][0])


PATTERN = patterns.begin("odd", is_odd, at_least=1, at_most=2).then("longer", is_longer).without(bytes.isupper)


SPLITS: dict[str, Callable[[Stage], tuple[Stage, ...]]] = {
    "split": lambda stage: stage.split(is_short),
    "split_in_three": lambda stage: stage.split(by_length, "short", "medium", "long", value=louder),
}
NARROW: dict[str, Callable[[Stage], Stage]] = {
    "map": lambda stage: stage.map(louder),
    "filter": lambda stage: stage.filter(is_short),
    "flat_map": lambda stage: stage.flat_map(pieces),
    "map_batches": lambda stage: stage.map_batches(reversed_rows),
    "map_async": lambda stage: stage.map_async(asked, concurrency=3),
    "key_by": lambda stage: stage.key_by(key),
    "peek": lambda stage: stage.peek(len),
    "add_timestamps": lambda stage: stage.add_timestamps(when),
}
EXCHANGES: dict[str, Callable[[Stage, int], Stage]] = {
    "rebalance": lambda stage, tasks: stage.rebalance(parallelism=tasks),
    "by_key": lambda stage, tasks: stage.rebalance(key, parallelism=tasks),
    "map_stateful": lambda stage, tasks: stage.map_stateful(counted, key=key, initial=0, parallelism=tasks),
    "filter_stateful": lambda stage, tasks: stage.filter_stateful(is_new, key=key, parallelism=tasks),
    "flat_map_stateful": lambda stage, tasks: stage.flat_map_stateful(
        remembered, key=key, initial={"seen": []}, parallelism=tasks
    ),
    "reduce": lambda stage, tasks: stage.reduce(together, key=key, parallelism=tasks),
    "rolling": lambda stage, tasks: stage.rolling(aggregates.collect(), key=key, parallelism=tasks).map(b"".join),
    "distinct": lambda stage, tasks: stage.distinct(key, parallelism=tasks),
    "process": lambda stage, tasks: stage.process(
        waiting, on_timer=waited, key=key, initial=0, time=when, step_s=2, parallelism=tasks
    ),
    "match": lambda stage, tasks: stage.match(
        PATTERN, within_s=3, key=key, time=when, late="dead-letter", skip="none", parallelism=tasks
    ).map(repr),
    "key_before": lambda stage, tasks: (
        stage.key_by(key).map(louder).rebalance(parallelism=tasks).map_stateful(counted, initial=0, parallelism=tasks)
    ),
}

SIDED: dict[str, Callable[[Stage, Stage, int], Stage]] = {
    "broadcast": lambda stage, other, tasks: stage.with_broadcast(other, apply=after, parallelism=tasks),
    "broadcast_state": lambda stage, other, tasks: stage.with_broadcast(
        other, apply=ruled, update=latest_three, initial=list, parallelism=tasks
    ),
    "as_of": lambda stage, other, tasks: stage.as_of(
        other,
        join=priced,
        key=key,
        time=when,
        valid_from=last_byte,
        versions_max=2,
        late="dead-letter",
        parallelism=tasks,
    ),
}


@st.composite
def pipelines(draw: st.DrawFn, *, stages_max: int = 8, order: str = "total") -> Pipeline:
    """Generate a pipeline with dead letters and one or two sources, whose stages follow any earlier stage."""
    pipeline = Pipeline(
        "chance",
        order=order,  # type: ignore[arg-type]
        parallelism=draw(st.integers(1, 4)),
        dead_letter="file:dead",
        fusion=draw(st.booleans()),
    )
    places = [pipeline.source("first")]
    if draw(st.booleans()):
        places.append(pipeline.source("second", streams=[FIRST_STREAM + 1]))
    exchanges = 0
    for _ in range(draw(st.integers(0, stages_max))):
        # Later stages are more likely, so that there are long chains as well as many branches.
        place = places[-1] if draw(st.booleans()) else draw(st.sampled_from(places))
        what = draw(st.sampled_from([*NARROW, *SPLITS, *EXCHANGES, *SIDED, "merge", "merge"]))
        others = [other for other in places if other is not place]
        if what in NARROW:
            places.append(NARROW[what](place))
        elif what in SPLITS:
            places += SPLITS[what](place)
        elif what in EXCHANGES and exchanges < EXCHANGES_MAX:
            exchanges += 1
            places.append(EXCHANGES[what](place, draw(st.integers(1, 4))))
        elif what in SIDED and exchanges < EXCHANGES_MAX and others:
            exchanges += 2
            places.append(SIDED[what](place, draw(st.sampled_from(others)), draw(st.integers(1, 4))))
        elif what == "merge" and others:
            chosen = draw(st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True))
            places.append(place.merge(*chosen))
    ends = {len(places) - 1, *draw(st.sets(st.integers(0, len(places) - 1), max_size=2))}
    for number in sorted(ends):
        connections = 1 if order == "total" else draw(st.integers(1, 3))
        places[number].sink(f"out-{number}", to="file:out", connections=connections)
    return pipeline


PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=4), st.sampled_from([b"", b"a", b"b c", b"bad", b"cab", b"b"])), max_size=40
)
