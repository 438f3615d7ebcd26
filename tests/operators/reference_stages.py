"""The effect of each kind of stage on one record, in plain Python: the states of the reference run."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy as own
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa

from procession.operators.clock_process import ClockProcess
from procession.operators.codecs import decoder_of
from procession.operators.context import Context
from procession.operators.expiry import ExpiringState
from procession.operators.keyed import KeyedOperator
from procession.operators.patterns import SkipRule
from procession.operators.sort import SortOperator
from procession.operators.stream_join import LatePairRule
from procession.operators.total import TotalOperator
from procession.operators.value_codec import ValueCodec
from procession.operators.versions import LateVersionRule
from procession.operators.windows import LateWindowRule, late_record
from procession.planner.event_order import LateRecord
from procession.planner.graph import Graph, Kind, Node
from procession.planner.inputs import number_of
from procession.planner.keys import NO_KEY, KeyCodec, RecordKey
from procession.planner.order_key import AFTER
from procession.planner.rules import make_plan
from procession.times import in_unit, nanoseconds

Record = dict[str, Any]
LOWEST = -(2**62)


@dataclass
class TimerRequests:
    """The timers that a function of a stage sets and cancels."""

    key: Any
    time: Any
    unit: Any
    calls: list[tuple[bool, int]] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    """The timers by the clock, in nanoseconds from now."""
    is_cancelling: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def counter(self, name: str, add: int = 1) -> None:
        self.counts[name] += add

    def timer_at(self, time: Any) -> None:
        self.calls.append((True, nanoseconds(time, self.unit)))

    def cancel_timer(self, time: Any) -> None:
        self.calls.append((False, nanoseconds(time, self.unit)))

    def timer_after_s(self, seconds: int) -> None:
        self.delays.append(seconds * 10**9)

    def cancel_timers(self) -> None:
        self.is_cancelling = True
        self.calls.clear()
        self.delays.clear()


class Remembered(dict[int, int]):
    """A dictionary that stores what a function returned for each argument."""

    def __init__(self, function: Callable[[int], int]) -> None:
        super().__init__()
        self.function = function

    def __missing__(self, argument: int) -> int:
        self[argument] = self.function(argument)
        return self[argument]


@dataclass
class StageStates:
    """The states of all stages of a graph, and the results of a stage for a record, a watermark or an end.

    `by_row` has the function for one row of each stage that takes many: the payload of a `map_batches`, the list of
    payloads of a `transform`."""

    graph: Graph
    by_row: dict[str, Callable[[bytes], Any]] = field(default_factory=dict)
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)
    states: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    """The state of each keyed stage and key, as bytes, so that it shares no object with the output."""

    windows: dict[int, dict[Any, Any]] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    held: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The records that wait for a partner in each join."""
    corrected: dict[int, dict[tuple[bytes, int], list[Any]]] = field(default_factory=dict)
    """The records of the windows of each stage that have fired, by key and end."""
    timers: dict[int, set[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(set))
    """The timers of each stage: their times and keys."""
    waiting: dict[int, list[tuple[int, bytes, int]]] = field(default_factory=lambda: defaultdict(list))
    """The timers of each stage that the next tick of its clock starts: the latest tick, the key, the length."""
    counts: Counter[str] = field(default_factory=Counter)
    """The counters of the app."""
    serial: int = 0
    time: int = 0
    """The event time of the current record."""
    fired: bytes = NO_KEY
    """The key of the window that has just fired."""
    came_with: bytes = NO_KEY
    """The key that the current record had before this stage."""

    stage_time: int = 0
    """The event time of the current record for a stage whose states expire."""
    expiries: dict[tuple[int, bytes], int] = field(default_factory=dict)
    latest: int = 0
    has_ended: dict[int, bool] = field(default_factory=dict)
    """For each stream that has begun, whether it has ended."""
    is_over: dict[int, bool] = field(default_factory=dict)
    """For each stage, whether all its streams have ended and the stage has been told."""
    input: int = 0
    """The input of the current record, at a stage whose watermark is the minimum over several inputs."""
    known: dict[int, dict[int, bool]] = field(default_factory=lambda: defaultdict(dict))
    """`has_ended` as known to each stage: it is told of an end after the results of all stages before it."""
    aside: Exception | None = None
    """Why the current record is late at the current stage, or None."""
    came: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """The event time that each input of each stage has reached."""

    def __post_init__(self) -> None:
        self.values = ValueCodec(self.graph.types)
        plan = make_plan(self.graph)
        self.inputs = plan.inputs
        # Computed once, because it is needed for each record.
        self.before: dict[int, set[int]] = {}
        """For each stage, itself and the stages before it."""
        for index, node in enumerate(self.graph.nodes):
            self.before[index] = {index}.union(*(self.before[parent] for parent in node.parents))
        self.children = [self.graph.children(index) for index in self.before]
        self.source_of = Remembered(self._source_of)
        self.origins = {chain.root: plan.origins[chain.number] for chain in plan.chains}

    @property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.graph.types)

    def _source_of(self, stream: int) -> int:
        sources = [index for index in self.before if self.graph.nodes[index].kind is Kind.SOURCE]
        named = [index for index in sources if stream in (self.graph.nodes[index].streams or ())]
        return (named or [index for index in sources if self.graph.nodes[index].streams is None])[0]

    def _streams_of(self, index: int, among: Iterable[int]) -> set[int]:
        """Return which of these streams reach a stage."""
        return {stream for stream in among if self.source_of[stream] in self.before[index]}

    def _holding(self, index: int) -> set[int]:
        """Return the inputs of a stage that have not ended, as far as the stage knows."""
        known, inputs = self.known[index], self.inputs[index]
        found = set()
        for number, ending in inputs.wholes.items():
            awaited = [stream for source in self.graph.sources for stream in source.awaited]
            mine = self._streams_of(number_of(number), [*known, *awaited])
            if ending is None or not mine or not all(known.get(stream) for stream in mine):
                found.add(number)
        for number, ending in inputs.sources.items():
            found |= {stream for stream in known if ending.takes(stream) and not known[stream]}
            found |= {stream for stream in ending.awaited if not known.get(stream)}
            if not ending.awaited and not any(map(ending.takes, known)):
                found.add(number)
        return found

    def _moved(self, index: int, to: int | None) -> int:
        """Return the watermark of a stage after its input has reached `to`, or has ended if `to` is None."""
        if index not in self.inputs:
            assert to is not None
            self.watermarks[index] = max(self.watermarks.get(index, to), to)
            return self.watermarks[index]
        holding, came = self._holding(index), self.came[index]
        for number in came.keys() - holding:
            del came[number]
        if to is not None and self.input in holding:
            came[self.input] = max(to, came.get(self.input, to))
        least = min((came.get(number, LOWEST) for number in holding), default=LOWEST)
        self.watermarks[index] = max(least, self.watermarks.get(index, LOWEST))
        return self.watermarks[index]

    def _due(self, index: int) -> Iterator[Any]:
        """Return the results that the current watermark of a stage fires."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        watermark = self.watermarks[index]
        if node.kind is Kind.JOIN:
            held = self.held.setdefault(index, [])
            gone = [one for one in held if one["time"] + stage.within < watermark]
            held[:] = [entry for entry in held if entry not in gone]
            for one in sorted(gone, key=lambda one: (one["time"], one["key"])):
                if stage.is_outer and one["side"] == 0 and not one["partners"]:
                    self.fired = one["key"]
                    yield own(stage.join(self.values.decoded_value(one["value"]), None))
        elif isinstance(stage, ExpiringState):
            yield from self._expired(index, watermark)
        elif node.kind is Kind.MATCH:
            yield from self._matches_over(index, watermark)
        elif node.kind is Kind.PROCESS:
            started = [timer for timer in self.waiting[index] if timer[0] < watermark]
            self.waiting[index] = [timer for timer in self.waiting[index] if timer not in started]
            self.timers[index] |= {(watermark + delay, key) for _, key, delay in started}
            while (due := min(self.timers[index], default=(AFTER, b"")))[0] <= watermark:
                yield from self._on_timer(index, *due)
        elif not stage.windows.count:
            opened = self.windows.setdefault(index, {})
            for end, whose in sorted((end, whose) for whose, end in opened if end <= watermark):
                start, values = opened.pop((whose, end))
                self.corrected.setdefault(index, {})[whose, end] = values
                yield self._window_result(node, start, end, values, whose, "end")

    def _fired(self, index: int) -> Iterator[Any]:
        """Return the results of everything that a stage still holds."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        if node.kind is Kind.JOIN:
            for one in sorted(self.held.pop(index, []), key=lambda one: (one["time"], one["key"])):
                if stage.is_outer and one["side"] == 0 and not one["partners"]:
                    yield own(stage.join(self.values.decoded_value(one["value"]), None))
        elif isinstance(stage, ExpiringState):
            yield from self._expired(index, AFTER)
        elif node.kind is Kind.MATCH:
            yield from self._matches_over(index, AFTER)
        elif node.kind is Kind.PROCESS:
            for due in sorted(self.timers[index]):
                yield from self._on_timer(index, *due)
            self.timers[index].clear()  # what was set meanwhile
        elif node.kind in (Kind.WINDOW, Kind.WINDOW_BY_KEY):
            opened = self.windows.pop(index, {})
            self.corrected.pop(index, None)
            for end, whose in sorted((end, whose) for whose, end in opened):
                held = opened[whose, end]
                start, values = (0, held) if stage.windows.count else held
                yield self._window_result(node, start, end, values, whose, "end")
        if isinstance(stage, SortOperator):
            self.fired = NO_KEY
            ranked = sorted(self.windows.pop(index, {}).values(), reverse=stage.is_reversed, key=itemgetter(0))
            yield from (value for _, value in ranked)
        if isinstance(stage, TotalOperator):
            total = stage.aggregate
            held = self.windows.pop(index, {})
            if not held and node.key is None:
                held = {NO_KEY: [0, total.create()]}
            for key, (count, value) in sorted(held.items()):
                self.fired = key
                named = {"key": self.keys.decode(key)} if node.key is not None else {}
                yield named | {"count": count, "value": own(total.finish(value))}

    def _window_result(
        self, node: Node, start: int, end: int, values: list[Any], whose: bytes, why: str
    ) -> dict[str, Any]:
        stage: Any = node.operator
        self.fired = whose
        named = {"key": self.keys.decode(whose)} if node.key is not None else {}
        result = stage.aggregate.of(own(values))
        unit = node.unit
        times = {"start": in_unit(start, unit), "end": in_unit(end, unit)}
        replaces = {"replaces": None} if stage.updates else {}
        return named | times | {"count": len(values), "value": result, "fired": why} | replaces

    def _stage_key(self, node: Node, value: Any) -> bytes:
        """Return the key under which a stage stores this value."""
        if isinstance(node.key, RecordKey):
            return self.came_with
        return NO_KEY if node.key is None else self.keys.encode(node.key(value))

    def _plain(self, key: bytes) -> bytes:
        plain: bytes = self.keys.shown(pa.array([key], pa.binary()))[0].as_py()
        return plain

    def _results(self, index: int, value: Any) -> Iterator[Any]:
        node = self.graph.nodes[index]
        function: Any = node.function
        if node.is_asking:
            asking, context = function, Context(self.keys.decode(self.came_with), self.time, self.input, self.counts)
            function = lambda value: asking(value, context)  # noqa: E731
        match node.kind:
            case Kind.SOURCE:
                yield decoder_of(node)(value)
            case Kind.MAP:
                yield function(value)
            case Kind.MAP_ASYNC:
                yield self.loop.run(function(value))
            case Kind.FILTER:
                if function(value):
                    yield value
            case Kind.FLAT_MAP | Kind.HASH_JOIN:
                yield from function(value)
            case Kind.MAP_BATCHES:
                yield self.by_row[node.name](value.encode() if isinstance(value, str) else value)
            case Kind.TRANSFORM:
                yield from self.by_row[node.name](value.encode() if isinstance(value, str) else value)
            case Kind.SPLIT:
                yield function(value)
            case Kind.OUTPUT:
                if value[0] == node.output:
                    yield value[1]
            case Kind.PEEK:
                function(value)
                yield value
            case Kind.ADD_TIMESTAMPS:
                self.time = nanoseconds(function(value), node.unit)
                yield value
            case Kind.KEY_BY | Kind.REBALANCE | Kind.MERGE:  # the caller computes the key of key_by
                yield value
            case Kind.DISTINCT:
                place = index, self._stage_key(node, value)
                is_new = place not in self.states
                self.states[place] = b""
                self._stay(*place)
                if is_new:
                    yield value
            case Kind.WINDOW | Kind.WINDOW_BY_KEY:
                yield from self._windows(index, value)
            case Kind.JOIN:
                yield from self._pairs(index, value)
            case Kind.PROCESS:
                yield from self._process(index, value)
            case Kind.MATCH:
                yield from self._matches(index, value)
            case Kind.BROADCAST:
                stage: Any = node.operator
                side, given = value
                if side == 1:
                    self.states[index, NO_KEY] = self.values.packed(given)
                elif (index, NO_KEY) in self.states:
                    yield stage.apply(self.values.decoded_value(self.states[index, NO_KEY]), given)
                else:
                    yield stage.apply(stage.initial(), given)
            case Kind.AS_OF:
                yield from self._as_of(index, value)
            case Kind.SORT:
                assert isinstance(node.operator, SortOperator)
                records = self.windows.setdefault(index, {})
                records[len(records)] = node.operator.by(value), value
            case Kind.AGGREGATE | Kind.AGGREGATE_BY_KEY:
                key = self._stage_key(node, value)
                assert isinstance(node.operator, TotalOperator)
                total = node.operator.aggregate
                all_held = self.windows.setdefault(index, {})
                held = all_held.get(key) or [0, total.create()]
                held[1] = total.add(held[1], value)
                held[0] += 1
                all_held[key] = held
            case _:
                yield from self._stateful(index, value)

    def _windows(self, index: int, value: Any) -> Iterator[Any]:
        """Add a record to its windows. All open windows of all keys are in one dictionary, which is scanned."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        key = self._stage_key(node, value)
        time = nanoseconds(node.time(value), node.unit) if node.time is not None else self.time
        opened = self.windows.setdefault(index, {})

        def window_result(start: int, end: int, count: int, values: list[Any], whose: bytes, why: str) -> Record:
            return self._window_result(node, start, end, values, whose, why)

        by = stage.windows
        if by.count:
            held = opened.setdefault((key, 0), [])
            held.append(value)
            if len(held) == by.count:
                del opened[key, 0]
                yield window_result(0, 0, len(held), held, key, "end")
            elif stage.early_records and len(held) % stage.early_records == 0:
                yield window_result(0, 0, len(held), held, key, "early")
            return
        watermark = self._moved(index, (time - stage.lateness) // by.step * by.step)
        yield from self._due(index)
        near = [end for whose, end in opened if whose == key and time < end and time + by.size > opened[whose, end][0]]
        for end in by.ends(time) if stage.updates else ():
            if end <= watermark < end + stage.updates:
                values = self.corrected.setdefault(index, {}).setdefault((key, end), [])
                before = {"count": len(values), "value": stage.aggregate.of(own(values))} if values else None
                values.append(value)
                yield window_result(by.start(end), end, 0, values, key, "update") | {"replaces": before}
        if not any(end > watermark for end in by.ends(time)) and not (by.is_session and near):
            if stage.late is LateWindowRule.FIRE:
                for end in by.ends(time):
                    yield window_result(by.start(end), end, 1, [value], key, "late")
            if stage.late is not LateWindowRule.OLDEST:
                self.aside = late_record(time, watermark)
                return
            time = watermark
            near = [e for whose, e in opened if whose == key and time < e and time + by.size > opened[whose, e][0]]
        if by.is_session:
            parts = [opened.pop((key, end)) for end in sorted(near)]
            start = min([time, *(start for start, _ in parts)])
            end = max([time + by.size, *near])
            opened[key, end] = start, [*(one for _, values in parts for one in values), value]
            ends = [end]
        else:
            ends = [end for end in by.ends(time) if end > watermark]
            for end in ends:
                opened.setdefault((key, end), (by.start(end), []))[1].append(value)
        for end in ends:
            start, values = opened[key, end]
            if stage.early_records and len(values) % stage.early_records == 0:
                yield window_result(start, end, len(values), values, key, "early")

    def _pairs(self, index: int, sided: Any) -> Iterator[Any]:
        """Return the pairs of a record. All held records of all keys are in one list, which is scanned."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        key = self._stage_key(node, sided)
        time = nanoseconds(node.time(sided), node.unit) if node.time is not None else self.time
        side, value = sided
        watermark = self._moved(index, (time - stage.lateness) // stage.step_ns * stage.step_ns)
        held = self.held.setdefault(index, [])
        yield from self._due(index)
        if time + stage.within < watermark and stage.late is not LatePairRule.MEET:
            self.aside = late_record(time, watermark)
            return
        near = [one for one in held if one["key"] == key and one["side"] != side]
        near = [entry for entry in near if abs(entry["time"] - time) <= stage.within]
        both = [(one, [self.values.decoded_value(one["value"]), own(value)]) for one in near]
        pairs = [(one, own(stage.join(*sides[:: -1 if side == 0 else 1]))) for one, sides in both]
        for one, pair in pairs:
            one["partners"] += 1
            yield pair
        if time + stage.within >= watermark:
            self.serial += 1
            same = {"serial": self.serial, "side": side, "key": key, "time": time}
            held.append({**same, "value": self.values.packed(value), "partners": len(pairs)})
        elif stage.is_outer and side == 0 and not pairs:
            yield own(stage.join(value, None))

    def _expiring(self, index: int, value: Any) -> Iterator[Any]:
        """Expire states by the time of a new record, before the record itself is processed."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        if not isinstance(stage, ExpiringState) and node.kind not in (Kind.PROCESS, Kind.MATCH):
            return
        self._stage_key(node, value)
        self.stage_time = nanoseconds(node.time(value), node.unit) if node.time is not None else self.time
        if node.kind in (Kind.PROCESS, Kind.MATCH):
            self._moved(index, (self.stage_time - stage.lateness) // stage.step_ns * stage.step_ns)
            yield from self._due(index)
            return
        watermark = self._moved(index, self.stage_time // stage.step_ns * stage.step_ns)
        yield from self._expired(index, watermark)

    def _expired(self, index: int, watermark: int) -> Iterator[Any]:
        node = self.graph.nodes[index]
        stage: Any = node.operator
        gone = sorted((end, key) for (of, key), end in self.expiries.items() if of == index and end <= watermark)
        for _, key in gone:
            del self.expiries[index, key]
            state = self.states.pop((index, key))
            result = stage.on_evict(self.keys.decode(key), self.values.decoded_value(state)) if stage.on_evict else None
            if result is not None:
                self.fired = key
                yield result

    def _as_of(self, index: int, sided: Any) -> Iterator[Any]:
        """Join a record with the valid version. All versions of all keys are in one dictionary, which is scanned."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        key = self._stage_key(node, sided)
        known = self.windows.setdefault(index, {})
        held = known.setdefault(key, {"greatest": LOWEST, "is_cut": False, "versions": {}})
        side, value = sided
        if side == 1:
            start = nanoseconds(stage.valid_from(value), node.unit)
            if start <= held["greatest"]:
                self.aside = LateRecord(
                    f"it is valid from {in_unit(start)} s, and records of its key up to {in_unit(held['greatest'])} s"
                    " have been joined already"
                )
                if stage.late is not LateVersionRule.KEEP:
                    return
            held["versions"][start] = self.values.packed(value)
            if len(held["versions"]) > stage.versions_max:
                del held["versions"][min(held["versions"])]
                held["is_cut"] = True
            return
        time = nanoseconds(stage.time(value), node.unit)
        starts = [start for start in held["versions"] if start <= time]
        if not starts and held["is_cut"]:
            oldest = min(held["versions"])
            reason = f"its time {in_unit(time)} s is before that of the oldest version kept, {in_unit(oldest)} s"
            if stage.late is not LateVersionRule.KEEP:
                self.aside = LateRecord(reason)
                return
            starts = [oldest]
            result = stage.join(value, self.values.decoded_value(held["versions"][oldest]))
            self.aside = LateRecord(reason)
        else:
            result = stage.join(value, self.values.decoded_value(held["versions"][max(starts)]) if starts else None)
        held["greatest"] = max(held["greatest"], time)
        yield result

    def _matches(self, index: int, value: Any) -> Iterator[Any]:
        """Return the matches of a record. A partial match is a list of step names and records; its position is computed
        each time."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        key = self._stage_key(node, value)
        time = nanoseconds(node.time(value), node.unit) if node.time is not None else self.time
        self.fired = key
        if time + stage.within < self.watermarks[index]:
            self.aside = late_record(time, self.watermarks[index])
            return
        steps, after = stage.pattern.steps, stage.pattern.without_after
        held = self.windows.setdefault(index, {}).setdefault(key, [])
        going, complete = [], []

        def has(name: str, one: list[Any]) -> int:
            return sum(step == name for step, *_ in one)

        def is_full(one: list[Any]) -> bool:
            return has(steps[-1].name, one) >= steps[-1].at_least

        for entry in held:
            if time - entry[0][1] > stage.within:
                going.append(entry)
                continue
            place = [step.name for step in steps].index(entry[-1][0])
            step, count = steps[place], has(entry[-1][0], entry)
            follows = steps[place + 1] if place + 1 < len(steps) else None
            is_enough = count >= step.at_least
            matched = self._by_step(entry)
            banned = () if not is_enough else after if follows is None else follows.without
            if any(condition.holds(own(value), matched) for condition in banned):
                continue
            if is_enough and follows is None:
                going.append(entry)
            elif is_enough and follows is not None and follows.condition.holds(own(value), matched):
                longer = [*entry, (follows.name, time, self.values.packed(value))]
                (complete if is_full(longer) and not after else going).append(longer)
            elif count < step.at_most and step.condition.holds(own(value), matched):
                longer = [*entry, (step.name, time, self.values.packed(value))]
                (complete if is_full(longer) and not after else going).append(longer)
            elif not (follows if is_enough and follows is not None else step).is_next:
                going.append(entry)
        is_skipping = stage.skip is SkipRule.PAST_LAST
        if not (is_skipping and complete) and steps[0].condition.holds(own(value), {}):
            begun = [(steps[0].name, time, self.values.packed(value))]
            (complete if is_full(begun) and not after else going).append(begun)
        if is_skipping and complete:
            going, complete = [], complete[:1]
        held[:] = going
        for match in complete:
            yield self._match_of(node, key, match)

    def _matches_over(self, index: int, watermark: int) -> Iterator[Any]:
        """End partial matches whose time is over. Those without an excluded record are complete."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        last = stage.pattern.steps[-1]
        found = []
        for key, held in self.windows.get(index, {}).items():
            over = [one for one in held if one[0][1] + stage.within < watermark]
            held[:] = [entry for entry in held if entry not in over]
            complete = [one for one in over if sum(step == last.name for step, *_ in one) >= last.at_least]
            complete = sorted(complete if stage.pattern.without_after else [], key=lambda one: one[0][1])
            if complete and stage.skip is SkipRule.PAST_LAST:
                held.clear()
                del complete[1:]
            found += [(one[0][1], key, number, one) for number, one in enumerate(complete)]
        for _, key, _, one in sorted(found, key=lambda one: one[:3]):
            self.fired = key
            yield self._match_of(node, key, one)

    def _by_step(self, one: list[Any]) -> dict[str, list[Any]]:
        matched = defaultdict(list)
        for name, _, value in one:
            matched[name].append(self.values.decoded_value(value))
        return dict(matched)

    def _match_of(self, node: Node, key: bytes, one: list[Any]) -> dict[str, Any]:
        times = {"start": in_unit(one[0][1], node.unit), "end": in_unit(one[-1][1], node.unit)}
        return {"key": self.keys.decode(key), **times, "matched": self._by_step(one)}

    def _process(self, index: int, value: Any) -> Iterator[Any]:
        """Process a record at a stage with timers. All timers of all keys are in one set."""
        node = self.graph.nodes[index]
        stage: Any = node.operator
        key = self._stage_key(node, value)
        time = nanoseconds(node.time(value), node.unit) if node.time is not None else self.time
        if isinstance(stage, ClockProcess):
            side, value = value
            if side == 1:  # a tick, which has fired the due timers
                return
            time = max(0, self.watermarks[index])
        context = TimerRequests(self.keys.decode(key), in_unit(time, node.unit), node.unit, counts=self.counts)
        is_known = (index, key) in self.states
        state = self.values.decoded_value(self.states[index, key]) if is_known else stage.initial()
        try:
            after, results = stage.function(state, value, context)
            results = [own(result) for result in results]
        except Exception:
            if is_known:
                self.states[index, key] = self.values.packed(state)
            raise
        self._left(index, key, after, context)
        self.waiting[index] += [(self.watermarks[index], key, delay) for delay in context.delays]
        self.fired = key
        yield from results
        yield from self._due(index)

    def _on_timer(self, index: int, time: int, key: bytes) -> Iterator[Any]:
        node = self.graph.nodes[index]
        stage: Any = node.operator
        self.timers[index].remove((time, key))
        context = TimerRequests(self.keys.decode(key), in_unit(time, node.unit), node.unit, counts=self.counts)
        is_known = (index, key) in self.states
        state = self.values.decoded_value(self.states[index, key]) if is_known else stage.initial()
        after, results = stage.on_timer(state, context)
        results = [own(result) for result in results]
        self._left(index, key, after, context)
        self.timers[index] |= {(self.watermarks[index] + delay, key) for delay in context.delays}
        self.fired = key
        yield from results

    def _left(self, index: int, key: bytes, state: Any, context: TimerRequests) -> None:
        """Store the timers and the state that a function of a stage has set."""
        self.states.pop((index, key), None)
        if state is not None:
            self.states[index, key] = self.values.packed(state)
        if context.is_cancelling:
            self.timers[index] = {timer for timer in self.timers[index] if timer[1] != key}
            self.waiting[index] = [timer for timer in self.waiting[index] if timer[1] != key]
        for is_set, time in context.calls:
            (self.timers[index].add if is_set else self.timers[index].discard)((time, key))

    def _stay(self, index: int, key: bytes) -> None:
        """Remember the key of this record from now on, or for longer."""
        node = self.graph.nodes[index]
        if isinstance(node.operator, ExpiringState):
            until = max(self.stage_time, self.watermarks[index]) + node.operator.ttl
            self.expiries[index, key] = max(until, self.expiries.get((index, key), until))

    def _stateful(self, index: int, value: Any) -> Iterator[Any]:
        node = self.graph.nodes[index]
        assert isinstance(node.operator, KeyedOperator | ExpiringState)
        assert node.operator.step is not None
        place = index, self._stage_key(node, value)
        state = self.values.decoded_value(self.states[place]) if place in self.states else node.operator.initial()
        is_known = place in self.states
        try:
            state, result = node.operator.step(state, value)
            results = list(result) if node.kind is Kind.FLAT_MAP_STATEFUL else [result]
        except Exception:
            # Changes that a step made to its state before it raised stay.
            if is_known:
                self.states[place] = self.values.packed(state)
            raise
        if node.kind is Kind.FILTER_STATEFUL:
            results = [value] if result else []
        results = [own(one) for one in results]
        if state is None:
            self.states.pop(place, None)
            self.expiries.pop(place, None)
        else:
            self.states[place] = self.values.packed(state)
            self._stay(*place)
        yield from results
