"""The arithmetic of quorums: which numbers are safe, which history is continued, and which copies become members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from procession.errors import ConfigError
from procession.sos.quorum_copies import (
    CopyView,
    check_quorum,
    claims_needed,
    is_claimed,
    is_written,
    longest_history,
    wanted_config,
)
from procession.sos.volume_rules import ObjectState, QuorumConfig
from tests.sos.volumes import CONFIG, FIRST, A, B, C, head


@pytest.mark.parametrize(("count", "write_quorum"), [(0, 0), (1, 0), (1, 2), (2, 1), (3, 1), (4, 2), (16, 9)])
def test_numbers_that_cannot_be_safe_are_refused(count: int, write_quorum: int) -> None:
    with pytest.raises(ConfigError):
        check_quorum(count, write_quorum)


@pytest.mark.parametrize("count", range(1, 8))
def test_every_claim_meets_every_write_and_every_other_claim(count: int) -> None:
    for write_quorum in range(count // 2 + 1, count + 1):
        check_quorum(count, write_quorum)
        config = QuorumConfig(tuple(bytes([number]) * 16 for number in range(count)), write_quorum)
        claims = claims_needed(config)
        found = head(0, config=config)
        assert is_written(found, set(config.members[:write_quorum]))
        assert not is_written(found, set(config.members[: write_quorum - 1]))
        assert claims + write_quorum > count
        assert 2 * claims > count
        assert claims <= count


def view(identity: bytes, objects: dict[int, ObjectState], mark: int = 0) -> CopyView:
    return CopyView(is_up=True, identity=identity, mark=mark, objects=objects)


def test_the_longest_copy_of_the_newest_object_is_continued_not_the_largest_file() -> None:
    zombie = view(A, {1: ObjectState(FIRST, 900, 900, 9)})
    short = view(B, {1: ObjectState(FIRST, 4, 4, 1), 2: ObjectState(head(1, b"1234"), 7, 7, 2)})
    longer = view(C, {1: ObjectState(FIRST, 4, 4, 1), 2: ObjectState(head(1, b"1234"), 8, 8, 3)})
    links = longest_history([zombie, short, longer], 0)
    assert [(link.number, link.length, link.checksum) for link in links] == [
        (1, 4, head(1, b"1234").checksum),
        (2, 8, 3),
    ]
    assert [link.number for link in longest_history([longer], 2)] == [2]


def test_members_change_only_if_their_identities_are_clear() -> None:
    a, b, c, new = (view(identity, {}) for identity in (A, B, C, b"n" * 16))
    assert wanted_config([a, b, c], 2, CONFIG) is CONFIG
    assert wanted_config([c, a, b], 2, CONFIG) is CONFIG
    assert wanted_config([a, b, CopyView()], 2, CONFIG) is CONFIG
    assert wanted_config([new, b, c], 2, CONFIG) == QuorumConfig((b"n" * 16, B, C), 2)
    assert wanted_config([new, b, CopyView()], 2, CONFIG) is CONFIG, "A or C may be the one that is away"
    assert wanted_config([a, b, c], 3, CONFIG) == QuorumConfig((A, B, C), 3)
    assert wanted_config([a, b], 2, CONFIG) == QuorumConfig((A, B), 2)


def test_while_members_change_both_sets_must_promise() -> None:
    new = QuorumConfig((b"n" * 16, b"o" * 16, b"p" * 16), 2)
    both = replace(head(0, config=new), old_configs=(CONFIG,))
    assert is_claimed(both, {*new.members[:2], A, B})
    assert not is_claimed(both, {*new.members, A})
    assert not is_claimed(both, {new.members[0], A, B, C})


def test_while_members_change_a_claim_from_the_old_set_finds_every_write() -> None:
    new = QuorumConfig((b"n" * 16, b"o" * 16, b"p" * 16), 2)
    both = replace(head(0, config=new), old_configs=(CONFIG,))
    assert not is_written(both, set(new.members))
    assert not is_written(both, {*new.members, A})
    assert is_written(both, {*new.members[:2], A, B})
    assert not is_written(both, {new.members[0], A, B, C})
