"""Splits: the method of a stage that sends each record to one of several outputs.

Invariant: as in `api/stage`, the method adds nodes to the graph: one that calls the tag function, and one for each
output. `api/stage` inherits the method. At run time, `operators/side_outputs` splits the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from procession.errors import PlanError
from procession.operators.side_outputs import Tagging
from procession.planner.graph import Kind, Node
from procession.planner.validation import checked_name, checked_of_one

if TYPE_CHECKING:
    from procession.api.pipeline import Pipeline
    from procession.api.stage import Stage

OUTPUTS_MAX = 64
BOOLEAN_OUTPUTS = ("true", "false")
"""Names in `explain` for the outputs of a split without names."""


class Splits:
    """The `Stage` method that splits."""

    _pipeline: Pipeline
    _index: int
    _add: Callable[[Node], Stage]

    def split(
        self,
        tag: Callable[[Any], Any],
        *outputs: str,
        value: Callable[[Any], Any] | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> tuple[Stage, ...]:
        """Send each record to one of several outputs: `large, small = orders.split(is_large)`.

        The function is called once for each record. Each output is a stage to continue from. All outputs keep the
        order, and `merge` joins them again.

        Args:
            tag: Without `outputs`, returns true for the first of two outputs and false for the second. With `outputs`,
                returns the name of an output. Another name is an error of the record.
            outputs: The names of the outputs, in the order in which they are returned.
            value: Returns the value that goes to the output instead of the record. With `value`, a function before the
                split can emit records for several outputs, as pairs of a name and a value.

        Returns:
            A stage for each output.

        Raises:
            PlanError: A function cannot be called with one argument, there is only one output, or two outputs have the
                same name.

        Example:
            >>> from procession import Pipeline
            >>> orders = Pipeline("orders").source(codec="json")
            >>> large, small = orders.split(lambda order: order["cents"] >= 100_000)
            >>> kinds = orders.split(lambda order: order["kind"], "sale", "refund", "gift")
        """
        for function, what in ((tag, ""), (value, "value")):
            if function is not None or not what:
                checked_of_one(function, "split", what)
        for output in outputs:
            checked_name(output, "an output of a split")
        if len(outputs) == 1 or len(outputs) > OUTPUTS_MAX or len(set(outputs)) < len(outputs):
            given = ", ".join(map(repr, outputs[: OUTPUTS_MAX + 1]))
            raise PlanError(
                f".split() has the outputs {given}",
                next_step=f"name 2 to {OUTPUTS_MAX} different outputs, or no outputs if the tag is true or false",
            )
        named = f"split-{self._pipeline.size}" if name is None else checked_name(name, "a stage")
        tagging = Tagging(tag, outputs, value)
        split = self._add(Node(Kind.SPLIT, named, (self._index,), tagging, parallelism, is_named=name is not None))
        return tuple(
            self._add(Node(Kind.OUTPUT, f"{named}-{output}", (split._index,), output=number, is_named=name is not None))
            for number, output in enumerate(outputs or BOOLEAN_OUTPUTS)
        )
