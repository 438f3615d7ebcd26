"""Pieces: the method of a stage that continues with a reusable part of a pipeline.

Invariant: a piece is a function from stage to stage. The stages that it adds belong to the piece; `explain` shows them
as a group. `api/stage` inherits the method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from procession.errors import PlanError
from procession.planner.validation import checked_function, checked_name

if TYPE_CHECKING:
    from procession.api.pipeline import Pipeline


class Pieces:
    """The `Stage` method that continues with a piece."""

    _pipeline: Pipeline

    def apply(self, piece: Callable[..., Any], *arguments: Any, name: str | None = None, **options: Any) -> Any:
        """Continue with a reusable part of a pipeline: `events.apply(cleaned, 5)` calls `cleaned(events, 5)`.

        The names of the stages that the function adds begin with the name of the piece. So a piece can be applied
        several times with different names. `explain` shows its stages as a group. Pieces may contain pieces.

        Args:
            piece: A function that takes this stage as its first argument. Usually it returns the stage to continue
                from.
            arguments: Further arguments of the function.
            name: Name of the piece. Without it, the name of the function.
            options: Named arguments of the function.

        Returns:
            The function's result.

        Raises:
            PlanError: The function has no name and none is given, or it returns nothing.

        Example:
            >>> from procession import Pipeline, Stage
            >>> def above(stage: Stage, limit: int) -> Stage:
            ...     return stage.filter(lambda value: value["count"] > limit, name="limit")
            >>> events = Pipeline("events").source(codec="json")
            >>> events.apply(above, 5).apply(above, 7, name="far-above")
            <stage 'far-above-limit' of pipeline 'events'>
        """
        checked_function(piece, "apply")
        named = getattr(piece, "__name__", "") if name is None else name
        if not named.isidentifier() and name is None:
            raise PlanError(
                f".apply() was given {piece!r}, which has no name", next_step="name the piece, as in apply(…, name=…)"
            )
        with self._pipeline.group(checked_name(named, "a piece")):
            made = piece(self, *arguments, **options)
        if made is None:
            raise PlanError(
                f"the piece {named!r} returned nothing", next_step="let it return the stage to continue from"
            )
        return made
