"""Pipelines as users write them, each for one feature of the planner. The golden texts are generated from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procession import Pipeline, aggregates, windows


def same(record: Any) -> Any:
    return record


def words(record: str) -> list[str]:
    return record.split()


async def asked(record: Any) -> Any:
    return record


def keep(record: Any) -> bool:
    return bool(record)


def one_chain() -> Pipeline:
    pipeline = Pipeline("one-chain", dead_letter="file:dead")
    stage = pipeline.source("lines", codec="text").flat_map(words).filter(keep).map_batches(same)
    stage.peek(same).map_async(asked).sink("out", to="file:out")
    return pipeline


def listing1() -> Pipeline:
    """Listing 1 of the Conflux paper."""
    pipeline = Pipeline("listing1")
    stage = pipeline.source("numbers").filter(keep, name="filter", parallelism=15)
    stage = stage.map(same, name="map-15", parallelism=15).rebalance(name="rebalance")
    stage.map(same, name="map-2", parallelism=2).sink("out", to="file:out")
    return pipeline


def w1() -> Pipeline:
    """The first workload of the Conflux paper besides Listing 1: eight paths."""
    pipeline = Pipeline("w1")
    stage = pipeline.source("numbers").filter(keep, parallelism=3).rebalance().map(same, parallelism=4)
    stage.rebalance(same).map(same, parallelism=2).sink("out", to="file:out")
    return pipeline


def w2() -> Pipeline:
    """The second workload of the Conflux paper besides Listing 1: two exchanges, whose paths are counted separately."""
    pipeline = Pipeline("w2")
    stage = pipeline.source("numbers").filter(keep, parallelism=4).rebalance().map(same, parallelism=4)
    stage.rebalance().map(same, parallelism=2).sink("out", to="file:out")
    return pipeline


def unordered() -> Pipeline:
    pipeline = Pipeline("unordered", preserve_order=False)
    stage = pipeline.source("numbers").filter(keep, parallelism=4).map(same, parallelism=8).rebalance()
    stage.map(same).sink("out", to="file:out")
    return pipeline


def per_key() -> Pipeline:
    pipeline = Pipeline("per-key", order="key")
    stage = pipeline.source("trades", codec="json").filter(keep).rebalance(same, name="by-symbol", parallelism=4)
    stage.map(same).sink("by-key", to="file:out", codec="json")
    stage.key_by(same).sink("by-other-key", to="file:out", codec="json")
    return pipeline


def several_outputs() -> Pipeline:
    """Sinks with several connections: by key, by stream and without an order."""
    pipeline = Pipeline("several-outputs", order="key")
    stage = pipeline.source("trades", codec="json").filter(keep)
    by_symbol = stage.rebalance(same, name="by-symbol", parallelism=4)
    by_symbol.sink("by-key", to="file:out", codec="json", connections=4)
    by_symbol.sink("by-stream", to="file:out", codec="json", order="stream", connections=2)
    stage.sink("any", to="file:out", codec="json", order="none", connections=3)
    return pipeline


def per_stream() -> Pipeline:
    pipeline = Pipeline("per-stream", order="stream")
    pipeline.source().filter(keep).rebalance().map(same).sink("out", to="file:out")
    return pipeline


def diamond() -> Pipeline:
    """Branches that are merged in one chain, and branches that are merged after an exchange."""
    pipeline = Pipeline("diamond", dead_letter="file:dead")
    lines = pipeline.source("lines", codec="text")
    loud = lines.flat_map(words, name="words").map(str.upper, name="loud")
    quiet = lines.map(str.lower, name="quiet")
    both = loud.merge(quiet, name="both")
    both.sink("both-out", to="file:out")
    spread = lines.filter(keep, name="some").rebalance(name="spread", parallelism=3)
    both.merge(spread, name="all").map(same, name="last").sink("all-out", to="file:out")
    return pipeline


def some_want_order() -> Pipeline:
    """The order is kept for one sink only: the other branch is free."""
    pipeline = Pipeline("some-want-order", order="none")
    lines = pipeline.source("lines").filter(keep)
    lines.rebalance(name="spread").map(same, parallelism=8).sink("any", to="file:out")
    lines.rebalance(name="again").map(same, parallelism=8).sink("ordered", to="file:out", order="total")
    return pipeline


def never_rises() -> Pipeline:
    pipeline = Pipeline("never-rises")
    pipeline.source(parallelism=3).map(same, name="wide", parallelism=8).sink("out", to="file:out")
    return pipeline


def nothing_to_rebalance() -> Pipeline:
    pipeline = Pipeline("nothing-to-rebalance")
    pipeline.source().map(same).rebalance().map(same).sink("out", to="file:out")
    return pipeline


def two_sources() -> Pipeline:
    pipeline = Pipeline("two-sources")
    trades = pipeline.source("trades", codec="json", streams=[1, 2]).map(same)
    quotes = pipeline.source("quotes", codec="text").filter(keep)
    trades.merge(quotes).rebalance(parallelism=4).map(same).sink("out", to="file:out", codec="json")
    return pipeline


def sql() -> Pipeline:
    pipeline = Pipeline("sql")
    pipeline.source().transform(same, name="query", parallelism=3).map(same).sink("out", to="file:out")
    return pipeline


def cells() -> Pipeline:
    """Records that change their task inside Spark's shuffle."""
    pipeline = Pipeline("cells", exchange="spark")
    pipeline.source().filter(keep).rebalance(parallelism=4).map(same).sink("out", to="file:out")
    return pipeline


def ending() -> Pipeline:
    """Windows that fire when one of two sources has ended."""
    pipeline = Pipeline("ending")
    trades = pipeline.source("trades", streams=[1, 2], ends=True)
    quotes = pipeline.source("quotes")
    for name, stage in (("ended", trades), ("endless", trades.merge(quotes))):
        stage.window(windows.counting(3), aggregates.count(), name=name).sink(
            f"{name}-out", to="file:out", codec="json"
        )
    return pipeline


def pairs() -> Pipeline:
    """Two streams, joined by key within a time bound."""
    pipeline = Pipeline("pairs")
    trades = pipeline.source("trades", codec="json", streams=[1, 2])
    quotes = pipeline.source("quotes", codec="json").rebalance(parallelism=3).map(same)
    joined = trades.join(quotes, within_s=5, join=max, key=len, time=len, name="near", parallelism=4)
    joined.sink("out", to="file:out")
    return pipeline


def same_names() -> Pipeline:
    """A stage and a sink of each name; a stage may also be named like the sink of dead letters."""
    pipeline = Pipeline("same_names", dead_letter="file:letters")
    alerts = pipeline.source("alerts", codec="json")
    alerts.rebalance(parallelism=3, name="out").map(same, name="dead-letter").sink("alerts", to="file:out")
    alerts.sink("out", to="file:out")
    return pipeline


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    make.__name__: make
    for make in (
        one_chain,
        listing1,
        w1,
        w2,
        unordered,
        per_key,
        per_stream,
        several_outputs,
        diamond,
        some_want_order,
        never_rises,
        nothing_to_rebalance,
        two_sources,
        sql,
        cells,
        ending,
        pairs,
        same_names,
    )
}
