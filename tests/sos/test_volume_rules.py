"""The rules of a volume: what a client may not do."""

from __future__ import annotations

import pytest

from procession.sos.volume_rules import (
    OBJECT_BYTES_MAX,
    OBJECT_CHUNKS_MAX,
    OBJECTS_MAX,
    ObjectState,
    QuorumConfig,
    RefusalCode,
    RequestRefused,
    VolumeState,
    chain,
    check_append,
    check_claim,
    check_config,
    check_create,
    check_holder,
    check_mark,
    check_name,
    sealed_lengths,
)
from tests.sos.volumes import CONFIG, FIRST, T1, T2, A, B, head


def state(promised: int = 0, token: bytes = b"", mark: int = 0, **objects: ObjectState) -> VolumeState:
    return VolumeState(A, promised, token, mark, {int(name[1:]): known for name, known in objects.items()})


def known(before: int = 0, written: int = 0, length: int = 0) -> ObjectState:
    return ObjectState(head(before, b"x" * length), written, written, 0)


def test_a_fence_is_claimed_upwards_only_and_repeated_only_by_its_holder() -> None:
    check_claim(state(3, T1), 4, T2)
    check_claim(state(3, T1), 3, T1)
    for fence, token in ((3, T2), (2, T1)):
        with pytest.raises(RequestRefused) as refusal:
            check_claim(state(3, T1), fence, token)
        assert (refusal.value.code, refusal.value.promised) == (RefusalCode.FENCED, 3)
    for fence, token in ((0, T1), (4, b"short")):
        with pytest.raises(RequestRefused):
            check_claim(state(), fence, token)


@pytest.mark.parametrize(("fence", "token"), [(2, T1), (4, T1), (3, T2), (3, b"")])
def test_only_the_holder_of_the_highest_fence_changes_a_volume(fence: int, token: bytes) -> None:
    check_holder(state(3, T1), 3, T1)
    with pytest.raises(RequestRefused):
        check_holder(state(3, T1), fence, token)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a" * 129, ".hidden", "-x", "a\0b", "ä"])
def test_a_name_that_could_leave_the_directory_is_refused(name: str) -> None:
    check_name("orders.driver-0_A")
    with pytest.raises(RequestRefused):
        check_name(name)


@pytest.mark.parametrize(
    "config",
    [
        QuorumConfig((), 0),
        QuorumConfig((A,), 0),
        QuorumConfig((A, B), 1),
        QuorumConfig((A, B), 3),
        QuorumConfig((A, A), 2),
        QuorumConfig((A, b"short"), 2),
        QuorumConfig(tuple(bytes([n]) * 16 for n in range(16)), 9),
    ],
)
def test_copies_that_are_not_a_majority_or_not_different_are_refused(config: QuorumConfig) -> None:
    with pytest.raises(RequestRefused):
        check_config(config)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_majority_is_accepted(count: int) -> None:
    for quorum in range(count // 2 + 1, count + 1):
        check_config(QuorumConfig(tuple(bytes([n]) * 16 for n in range(count)), quorum))


def none(_number: int, _length: int) -> int | None:
    return None


def test_an_object_is_created_only_where_its_predecessor_is_complete() -> None:
    volume, following = state(2, T1, o1=known(written=4)), head(1, b"1234")
    assert check_create(volume, 2, 2, following, 0, lambda number, length: following.checksum)
    for found in (None, following.checksum ^ 1):
        with pytest.raises(RequestRefused):
            check_create(volume, 2, 2, following, 0, lambda number, length, found=found: found)


def test_a_predecessor_below_the_writers_mark_need_not_be_there() -> None:
    assert check_create(state(9, T1), 9, 8, head(7, b"1234"), 8, none)
    with pytest.raises(RequestRefused):
        check_create(state(9, T1), 9, 8, head(7, b"1234"), 7, none)


def test_an_object_is_created_once_and_not_with_another_head() -> None:
    assert not check_create(state(1, T1, o1=known()), 1, 1, FIRST, 0, none)
    with pytest.raises(RequestRefused):
        check_create(state(2, T1, o1=known(), o2=known(1, 0, 3)), 2, 2, head(1, b"12"), 0, none)


def test_a_history_begins_once_unless_nothing_is_in_it() -> None:
    assert check_create(state(2, T1, o1=known()), 2, 2, FIRST, 0, none)
    for volume in (state(3, T1, o1=known(written=1)), state(3, T1, o1=known(), o2=known(1))):
        with pytest.raises(RequestRefused):
            check_create(volume, 3, 3, FIRST, 0, none)


@pytest.mark.parametrize(
    ("fence", "number", "before", "mark"), [(2, 3, 0, 0), (2, 2, 2, 0), (2, 0, 0, 0), (5, 3, 2, 4)]
)
def test_an_object_is_not_above_its_fence_below_the_mark_or_before_its_predecessor(
    fence: int, number: int, before: int, mark: int
) -> None:
    with pytest.raises(RequestRefused):
        check_create(state(fence, T1), fence, number, head(before), mark, lambda *_: 0)


def test_a_volume_has_a_bounded_number_of_objects() -> None:
    objects = {number: known(number - 1) for number in range(1, OBJECTS_MAX + 1)}
    with pytest.raises(RequestRefused) as refusal:
        check_create(VolumeState(A, 9999, T1, 0, objects), 9999, 9999, head(OBJECTS_MAX), 0, lambda *_: 0)
    assert refusal.value.code is RefusalCode.LIMIT


def test_an_append_is_at_the_end_and_before_the_seal() -> None:
    check_append(1, 4, None, 4, 10, 1)
    check_append(1, 4, 14, 4, 10, 1)
    for written, sealed, offset, length in ((4, None, 3, 1), (4, None, 5, 1), (4, 13, 4, 10), (4, None, 4, 0)):
        with pytest.raises(RequestRefused):
            check_append(1, written, sealed, offset, length, 1)


def test_an_object_is_bounded_in_bytes_and_in_appends() -> None:
    for written, chunks in ((OBJECT_BYTES_MAX, 1), (0, OBJECT_CHUNKS_MAX)):
        with pytest.raises(RequestRefused) as refusal:
            check_append(1, written, None, written, 1, chunks)
        assert refusal.value.code is RefusalCode.LIMIT


def test_the_newest_history_says_what_is_sealed_and_a_dead_branch_does_not() -> None:
    objects = {1: known(written=9), 2: known(1, 9, 7), 3: known(2, 9, 8), 4: known(2, 0, 5)}
    assert list(chain(objects, 4)) == [4, 2, 1]
    assert sealed_lengths(objects) == {2: 5, 1: 7}


def test_the_mark_names_an_object_of_the_newest_history() -> None:
    volume = state(4, T1, o1=known(), o2=known(1), o3=known(1))
    check_mark(volume, 3)
    check_mark(volume, 0)
    for mark in (2, 4):
        with pytest.raises(RequestRefused):
            check_mark(volume, mark)


def test_a_config_and_a_head_say_whether_the_copies_change() -> None:
    assert not FIRST.is_joint
    assert head(1, config=CONFIG) == head(1)
