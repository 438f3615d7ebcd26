"""`procession semantics`: the five cases of the paper, with the verifier's word on each.

The one rule: what is printed is what the verifier finds, not what we know. Before it the command line; after it
`verify/semantics`, which has the cases, and `verify/verifier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from procession.verify.lines import Chunks
from procession.verify.semantics import Semantics, case_lines
from procession.verify.verifier import compare


def shown(expected: Sequence[str], committed: Sequence[str]) -> Semantics | None:
    """What an output shows."""
    return compare([_chunks(expected)], _chunks(committed)).semantics


def five_cases() -> str:
    """What may be committed of the doubler's three inputs, by each semantics."""
    return "\n".join(case_lines(shown))


def _chunks(lines: Sequence[str]) -> Chunks:
    def chunks() -> Iterator[bytes]:
        yield "".join(f"{line}\n" for line in lines).encode()

    return chunks
