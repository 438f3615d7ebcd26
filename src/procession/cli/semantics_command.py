"""The command `procession semantics`: the five cases of the paper, each with the verifier's verdict.

Invariant: the printed verdicts come from the verifier. `verify/semantics` has the cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from procession.verify.lines import Chunks
from procession.verify.semantics import Semantics, case_lines
from procession.verify.verifier import compare


def semantics() -> None:
    """Show the meanings of "once": examples/doubler.py on 1, 2, 3 in five cases, each with its verdict."""
    print(five_cases())


def shown(expected: Sequence[str], committed: Sequence[str]) -> Semantics | None:
    """Return the semantics that an output shows."""
    return compare([_chunks(expected)], _chunks(committed)).semantics


def five_cases() -> str:
    """Describe the outputs that each semantics allows for the doubler's three inputs."""
    return "\n".join(case_lines(shown))


def _chunks(lines: Sequence[str]) -> Chunks:
    def chunks() -> Iterator[bytes]:
        yield "".join(f"{line}\n" for line in lines).encode()

    return chunks
