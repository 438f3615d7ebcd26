"""The corpus: for each target the inputs worth keeping, as lines of hex in a text file.

Invariant: the corpus is small. An input stays only if it takes a step in our code that no shorter one takes. An input
that once failed is written manually above the mark and stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
KEPT_BYTES_MAX = 512
MARK = "# found by make fuzz"
"""The mark: `select` chooses the lines below it, and `keep` rewrites them."""

Step = tuple[str, int, int]


def load(target: str) -> list[bytes]:
    path = FOLDER / f"{target}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [bytes.fromhex(line.partition("#")[0]) for line in lines if not line.startswith("#")]


def keep(target: str, function: Callable[[bytes], None], found: Iterable[bytes]) -> int:
    """Rewrite the corpus: the part above the mark, then the shortest inputs that together take every step."""
    path = FOLDER / f"{target}.txt"
    above = path.read_text().partition(f"{MARK}\n")[0] if path.exists() else ""
    by_hand = [bytes.fromhex(line.partition("#")[0]) for line in above.splitlines() if not line.startswith("#")]
    chosen = select(function, sorted({*found, *load(target)} - {*by_hand}, key=lambda data: (len(data), data)), by_hand)
    path.write_text(above + "".join(f"{line}\n" for line in [MARK, *(input_.hex() for input_ in chosen)]))
    return len(chosen)


def select(function: Callable[[bytes], None], inputs: Iterable[bytes], already: Iterable[bytes] = ()) -> list[bytes]:
    taken = {step for input_ in already for step in steps(function, input_)}
    chosen = []
    for one in inputs:
        if len(one) <= KEPT_BYTES_MAX and not (made := steps(function, one)) <= taken:
            taken |= made
            chosen.append(one)
    return chosen


def steps(function: Callable[[bytes], None], given: bytes) -> set[Step]:
    """Return the steps that this input takes in the protocol's code, as pairs of lines."""
    made: set[Step] = set()

    def watch(frame: FrameType, _event: str, _arg: Any) -> Any:
        name = frame.f_code.co_filename
        if "/procession/wire/" not in name and "/procession/sos/" not in name:
            return None
        last = frame.f_lineno

        def line(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal last
            if event == "line":
                made.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        function(given)
    finally:
        sys.settrace(before)
    return made
