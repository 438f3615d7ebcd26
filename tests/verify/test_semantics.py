"""The five semantics of the paper: each is shown by a run that it allows and that no stronger one allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from procession.verify.semantics import ALLOWED, CASES, Semantics, SemanticsCase, case_lines, is_within, shown_by
from procession.verify.verifier import Chunks, compare


def chunked(lines: Sequence[str]) -> Chunks:
    def chunks() -> Iterator[bytes]:
        yield "".join(f"{line}\n" for line in lines).encode()

    return chunks


def judge(expected: Sequence[str], committed: Sequence[str]) -> Semantics | None:
    return compare([chunked(expected)], chunked(committed)).semantics


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.semantics))
def test_the_verifier_calls_each_of_the_papers_cases_by_its_name(case: SemanticsCase) -> None:
    assert judge(CASES[-1].committed, case.committed) is case.semantics


def test_the_cases_are_the_five_of_the_paper_in_its_order() -> None:
    assert [case.semantics for case in CASES] == list(Semantics)
    text = "\n".join(case_lines(judge))
    for case in CASES:
        assert f"{' '.join(case.committed):17} {case.semantics}" in text


@pytest.mark.parametrize(("lost", "doubled", "corrupt"), list(product((0, 1), repeat=3)))
def test_a_run_is_called_by_the_strongest_name_that_allows_what_happened(lost: int, doubled: int, corrupt: int) -> None:
    shown = shown_by(lost=lost, doubled=doubled, corrupt=corrupt)
    if corrupt:
        assert shown is Semantics.ZERO_GUARANTEE
    elif lost and doubled:
        assert shown is Semantics.CORRECT_IF_COMMITTED
    elif lost:
        assert shown is Semantics.AT_MOST_ONCE
    elif doubled:
        assert shown is Semantics.AT_LEAST_ONCE
    else:
        assert shown is Semantics.EFFECTIVELY_ONCE


def test_a_run_keeps_its_promise_if_it_showed_nothing_that_the_promise_excludes() -> None:
    for shown, declared in product(Semantics, repeat=2):
        one, other = ALLOWED[shown], ALLOWED[declared]
        is_worse = one.losing > other.losing or one.doubling > other.doubling or one.falsifying > other.falsifying
        assert is_within(shown, declared) == (not is_worse)
    assert all(is_within(Semantics.EFFECTIVELY_ONCE, declared) for declared in Semantics)
    assert not is_within(Semantics.AT_MOST_ONCE, Semantics.AT_LEAST_ONCE)


def test_an_empty_run_shows_no_semantics() -> None:
    assert judge(["1:2"], []) is None
