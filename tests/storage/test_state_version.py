"""State versions: written and read back, refused by a program that cannot read them, and named so that names sort."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.storage.state_version import FORMAT, Files, StateVersion, file_prefix

TEXTS = st.text(max_size=5)
FILES: st.SearchStrategy[Files] = st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=3).map(tuple)
VERSIONS = st.builds(
    StateVersion,
    st.lists(FILES, max_size=3).map(tuple),
    TEXTS,
    st.integers(1, 3),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
)
TWO_TASKS = StateVersion(((("a", 3), ("b", 1)), (("c", 7),)), "total")


@given(VERSIONS)
def test_a_version_is_read_back_as_it_was_written(version: StateVersion) -> None:
    assert StateVersion.from_json(asdict(version)) == version


def test_a_version_without_a_format_is_the_first_one() -> None:
    read = StateVersion.from_json({"tasks": [[["a", 3]]], "kind": "total"})
    assert read == StateVersion(((("a", 3),),), "total", 1)


def test_a_version_names_the_files_of_all_its_tasks() -> None:
    assert TWO_TASKS.names == {"a", "b", "c"}
    assert StateVersion().names == set()


def test_states_of_this_format_are_read() -> None:
    TWO_TASKS.check_format("totals")


@pytest.mark.parametrize("found", [1, FORMAT - 1, FORMAT + 1])
def test_states_of_another_format_are_refused_and_a_version_without_files_is_not(found: int) -> None:
    replace(TWO_TASKS, format=found, tasks=((), ())).check_format("totals")
    with pytest.raises(StorageError) as caught:
        replace(TWO_TASKS, format=found).check_format("totals")
    assert f"stage 'totals' have format {found}, and this version reads format {FORMAT}" in caught.value.sentence
    assert ("or a later one" in caught.value.next_step) is (found > FORMAT)
    assert ("--dir" in caught.value.next_step) is (found < FORMAT)
    assert ("'7'" in caught.value.sentence) is (found == 1)
    assert caught.value.stage == "totals"


@given(
    st.tuples(*[st.integers(0, 10**9)] * 2, st.integers(0, 10**6 - 1), st.integers(0, 10**12)),
    st.tuples(*[st.integers(0, 10**9)] * 2, st.integers(0, 10**6 - 1), st.integers(0, 10**12)),
)
def test_names_sort_by_fence_then_task_then_epoch(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    names = [file_prefix(fence, "stage", task, epoch, attempt) for fence, attempt, task, epoch in (one, other)]
    places = [(fence, task, epoch) for fence, _, task, epoch in (one, other)]
    if places[0] != places[1]:
        assert (names[0] < names[1]) is (places[0] < places[1])


def test_two_attempts_at_a_task_have_different_names() -> None:
    names = [file_prefix(*given) for given in itertools.product((1, 2), ("a", "b"), (1, 2), (1, 2), (1, 2))]
    assert len(set(names)) == len(names)
