"""Side streams: the methods of a stage that process its records with the latest state of a second stream.

Invariant: as in `api/stage`, each method adds nodes to the graph and returns the last one as a stage. `api/stage`
inherits these methods; at run time, `operators/broadcast` and `operators/versions` process the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from procession.api.joins import of_both, sided_key
from procession.api.stateful_api import Key, StatefulStage, Time
from procession.errors import PlanError
from procession.operators.broadcast import BroadcastOperator, Updating, single_key
from procession.operators.tables import SideTable, TableJoin, ValidRow
from procession.operators.versions import VERSIONS_MAX, LateVersionRule, VersionJoin
from procession.planner.effects import changes_nothing
from procession.planner.graph import Kind, Node
from procession.planner.validation import (
    checked_call,
    checked_choice,
    checked_count,
    checked_name,
    checked_of_one,
    checked_unit,
)
from procession.times import Unit

if TYPE_CHECKING:
    from procession.api.stage import Stage

VERSIONS_LARGEST = 1_000_000


class SideStreams(StatefulStage):
    """The `Stage` methods with a second stream."""

    def with_broadcast(
        self,
        rules: Stage,
        *,
        apply: Callable[[Any, Any], Any],
        update: Callable[[Any, Any], Any] | None = None,
        initial: Any = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Process each record with the latest state of a second stream, which every task has: rules, settings, rates.

        A record is processed with the state of all `rules` records before it in the sequence, in any task. Records need
        no key.

        Args:
            rules: Another stage or source of the same pipeline.
            apply: Takes the latest state and a record, and returns the result.
            update: Takes the state and a record of `rules`, and returns the next state. Without `update`, the state is
                the latest record of `rules`.
            initial: The state before the first record of `rules`: a value, or a function that makes one.

        Raises:
            PlanError: The other stage belongs to another pipeline, a function has other arguments, or `initial` cannot
                be stored.

        Example:
            >>> from procession import Pipeline
            >>> pipeline = Pipeline("alerts")
            >>> limits = pipeline.source("limits", codec="json", streams=["limits"])
            >>> orders = pipeline.source("orders", codec="json")
            >>> alerts = orders.with_broadcast(
            ...     limits,
            ...     update=lambda limits, change: {**limits, change["item"]: change["limit"]},
            ...     initial={},
            ...     apply=lambda limits, order: {**order, "is_large": order["count"] > limits.get(order["item"], 100)},
            ... )
        """
        kind = Kind.BROADCAST
        self._check_side(rules, kind.value, "rules")
        checked_call(apply, kind.value, "apply", ("state", "record"))
        first = self._initial(kind, initial)
        named = self._named(kind.value, name, 4 if update is None else 5)
        states = rules
        if update is not None:
            checked_call(update, kind.value, "update", ("state", "record"))
            # In a checkpoint, a stage without a name is found by its functions, also at another position.
            state_name = None if name is None else f"{named}-state"
            states = rules.map_stateful(Updating(update), key=single_key, initial=initial, name=state_name)
        both = self._both(states, named)
        node = replace(both._node(kind, None, named, parallelism), is_named=name is not None)
        return self._add(replace(node, operator=BroadcastOperator(apply, first, changes_nothing(apply))))

    def as_of(
        self,
        versions: Stage | SideTable,
        *,
        join: Callable[[Any, Any], Any],
        time: Time,
        valid_from: Time,
        key: Key | None = None,
        left_key: Key | None = None,
        right_key: Key | None = None,
        unit: Unit = "s",
        late: Literal["keep", "drop", "dead-letter"] = "keep",
        versions_max: int = VERSIONS_MAX,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Join each record with the version of its key that was valid at the record's time: prices, rates, contracts.

        Emits `join(record, version)` at the position of the record, or `join(record, None)` if no version was valid.
        Only versions before the record in the sequence count. Of these, the valid version has the latest `valid_from`
        at or before the record's time.

        Args:
            versions: Another stage or source of the same pipeline; or a table (`procession.tables`) that has a row for
                each version and whose `by` is the key. With a table, the records stay in their tasks, and no version is
                late.
            join: Takes a record and a version or None, and returns the result. It receives a copy of the version.
            time: Returns a record's event time, as in `window`.
            valid_from: Returns the time from which a version is valid. A later version with the same time replaces it.
            key: Returns the key, for both sides. Without keys, the key is that of `key_by` on both sides.
            left_key: Returns the key of records only. Needs `right_key`.
            right_key: Returns the key of versions only. A table has its own key.
            unit: Unit of the times: "s", "ms", "us" or "ns".
            late: What happens to a version that arrives after records at whose time it was valid. It is counted. Then
                it is used for records that come after it ("keep"), dropped ("drop"), or becomes a dead letter
                ("dead-letter"). The same applies to records whose version is no longer kept; with "keep" they get the
                oldest kept version.
            versions_max: Number of versions that are kept per key. The versions with the latest times are kept.

        Raises:
            PlanError: The other stage belongs to another pipeline, there is no key, or a table is given `late` or
                `versions_max`.

        Example:
            >>> from procession import Pipeline
            >>> pipeline = Pipeline("rating")
            >>> prices = pipeline.source("prices", codec="json", streams=["prices"])
            >>> calls = pipeline.source("calls", codec="json")
            >>> rated = calls.as_of(
            ...     prices,
            ...     join=lambda call, price: {**call, "cents": call["minutes"] * price["cents"] if price else None},
            ...     key=lambda record: record["tariff"],
            ...     time=lambda call: call["at"],
            ...     valid_from=lambda price: price["from"],
            ... )
        """
        kind = Kind.AS_OF
        checked_call(join, kind.value, "join", ("record", "version"))
        checked_of_one(time, kind.value, "time")
        checked_of_one(valid_from, kind.value, "valid_from")
        if isinstance(versions, SideTable):
            given: dict[str, tuple[Any, Any]] = {"right_key": (right_key, None), "late": (late, "keep")}
            for word, (value, default) in (given | {"versions_max": (versions_max, VERSIONS_MAX)}).items():
                if value != default:
                    raise PlanError(
                        f".{kind.value}() was given {word}={value!r} and a table, which has its own key",
                        next_step=f"omit {word}; or read the versions with a source",
                    )
            valid = ValidRow(time, valid_from, checked_unit(unit))
            return self._valid_rows(versions, key or left_key, join, valid, name, parallelism)
        self._check_side(versions, kind.value, "versions")
        keys = sided_key(self, versions, kind.value, of_both(kind.value, key, left_key, right_key, "key"))
        operator = VersionJoin(
            join,
            time,
            valid_from,
            checked_unit(unit),
            checked_choice(LateVersionRule, late, "late"),
            checked_count(versions_max, "versions_max", kind.value, VERSIONS_LARGEST),
        )
        named = self._named(kind.value, name, 4)
        both = self._both(versions, named)
        node = replace(both._node(kind, None, named, parallelism), is_named=name is not None)
        return self._add(replace(node, key=keys, unit=unit, operator=operator))

    def _valid_rows(
        self,
        table: SideTable,
        key: Key | None,
        join: Callable[[Any, Any], Any],
        valid: ValidRow,
        name: str | None,
        parallelism: int | None,
    ) -> Stage:
        if key is None:
            raise PlanError(".as_of() with a table has no key", next_step="pass key=, a function of a record")
        checked_of_one(key, Kind.AS_OF.value, "key")
        function: Any = TableJoin(((table, key),), join, False, valid=valid)
        named = checked_name(name, "a stage") if name is not None else ""
        return self._add(Node(Kind.HASH_JOIN, named, (self._index,), function, parallelism))
