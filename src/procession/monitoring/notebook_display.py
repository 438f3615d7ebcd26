"""Shows the live progress of a run in a Jupyter notebook.

Invariant: one output of the cell is replaced; no further output is added. At the end it has no link, because the
link's secret would stay in the notebook's file. IPython is not imported: in a notebook it is already loaded.
"""

from __future__ import annotations

import html
import importlib
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from procession.errors import ProcessionError
from procession.monitoring.pipeline_snapshot import PipelineSnapshots
from procession.monitoring.progress import Display, PipelineProgress, cells_of

UPDATE_S = 0.5
"""Time between two updates of the cell's output."""
SENTENCES_MAX = 8
"""Maximum number of sentences that are shown."""
LINK = re.compile(r"https?://[^\s<]+")


def display_here() -> Display:
    """Return the display for this program: a notebook's display in a notebook, else the command line's."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return NotebookDisplay() if hasattr(shell, "kernel") else Display()


class NotebookDisplay(Display):
    """Shows the progress of a pipeline in the output of the notebook's cell."""

    def __init__(self) -> None:
        super().__init__(is_silent=True)
        self._display = importlib.import_module("IPython.display").display
        self._handle: Any = None
        self._said: deque[str] = deque(maxlen=SENTENCES_MAX)
        self._cells: dict[str, str] = {}
        self._snapshots: PipelineSnapshots | None = None
        self._next_update = 0.0

    def __enter__(self) -> Self:
        self._handle = self._display(self._bundle(), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept = [sentence for sentence in self._said if not LINK.search(sentence)]
        self._said.clear()
        self._said.extend(kept)
        self._update()

    def say(self, sentence: str) -> None:
        self._said.append(sentence)
        if self._handle is not None:
            self._update()

    def show(self, progress: PipelineProgress, restarts: int) -> None:
        super().show(progress, restarts)
        if time.monotonic() < self._next_update:
            return
        self._next_update = time.monotonic() + UPDATE_S
        self._cells = {**cells_of(progress, restarts), "verdict": self._verdict(progress)}
        self._update()

    def show_end(self, progress: PipelineProgress, restarts: int) -> None:
        self._next_update = 0.0
        self.show(progress, restarts)

    def say_cells(self, cells: Mapping[str, str]) -> None:
        """Do nothing, because the table already shows the cells."""

    def _verdict(self, progress: PipelineProgress) -> str:
        with suppress(ProcessionError, OSError):  # if a read fails, the display shows the last values
            # Reads only files, because a gateway that does not answer must not delay the supervisor.
            if self._snapshots is None:
                self._snapshots = PipelineSnapshots(progress.directory, is_asking=False)
            verdict = self._snapshots.take()["verdict"]
            why = f": {verdict['why'][0]}" if verdict["why"] else ""
            return f"{verdict['outcome']}{why}"
        return self._cells.get("verdict", "-")

    def _update(self) -> None:
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        shown = [", ".join(f"{name} {value}" for name, value in self._cells.items()), *self._said]
        return {"text/plain": "\n".join(filter(None, shown)), "text/html": as_html(self._cells, self._said)}


def as_html(cells: Mapping[str, str], sentences: Any = ()) -> str:
    """Return a table of cells and, below it, sentences with their links."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in cells)
    values = "".join(f"<td>{html.escape(value)}</td>" for value in cells.values())
    table = f"<table><thead><tr>{names}</tr></thead><tbody><tr>{values}</tr></tbody></table>" if cells else ""
    lines = "<br>".join(LINK.sub(_anchor, html.escape(sentence)) for sentence in sentences)
    return f'{table}<div style="font-family: monospace">{lines}</div>' if lines else table


def _anchor(found: re.Match[str]) -> str:
    return f'<a href="{found[0]}" target="_blank" rel="noopener noreferrer">{found[0]}</a>'
