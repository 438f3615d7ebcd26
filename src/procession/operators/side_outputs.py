"""Side outputs: a split tags each record with the output that it goes to.

Invariant: the tag function is called once for each record, for any number of outputs. Each record goes to exactly one
output. `api/splits` adds a split and its outputs to the graph; `operators/chain` runs them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from procession.operators.stage_rows import StageRows

TaggedValue = tuple[int, Any]
"""The result of a split: the number of the output, and the value for it."""

YES, NO = 0, 1
"""The outputs of a split without names: the records for which the tag is true, and the others."""


@dataclass(frozen=True)
class Tagging:
    """The function of a split. Without `outputs`, a tag is a truth value."""

    tag: Callable[[Any], Any]
    outputs: tuple[str, ...] = ()
    value: Callable[[Any], Any] | None = None
    """Returns the value for the output. None: the record itself."""

    def __call__(self, record: Any) -> TaggedValue:
        tag = self.tag(record)
        if not self.outputs:
            number = YES if tag else NO
        elif isinstance(tag, str) and tag in self.outputs:
            number = self.outputs.index(tag)
        else:
            raise ValueError(f"the tag {tag!r} is not one of the outputs {', '.join(map(repr, self.outputs))}")
        return number, record if self.value is None else self.value(record)

    def functions(self) -> Iterator[Callable[[Any], Any]]:
        """Yield the user's functions."""
        yield self.tag
        if self.value is not None:
            yield self.value


def rows_of_output(number: int, tagged: StageRows) -> StageRows:
    """Return the rows for the output with this number."""
    values = tagged.as_list()
    rows = [row for row, (output, _) in enumerate(values) if output == number]
    return tagged.pick(rows, [values[row][1] for row in rows])
