"""The gateways of a pipeline: a name belongs to one directory forever, and a change is saved before it is known."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.gateway.members import (
    FORMAT,
    NAME_CHARS_MAX,
    Member,
    Members,
    MemberStatus,
    members_of,
    others_than,
    written,
)

PATH = Path("gateways.json")
TEXTS = st.text(max_size=5)


class Store:
    """Keeps the document in memory. Fails if told so."""

    path = PATH

    def __init__(self, document: bytes | None = None) -> None:
        self.document = document
        self.saves = 0
        self.is_full = False

    def load(self) -> bytes | None:
        return self.document

    def save(self, document: bytes) -> None:
        if self.is_full:
            raise StorageError("full")
        self.document = document
        self.saves += 1


def member(name: str, identity: str = "", **more: str) -> Member:
    return Member(name, identity or f"id of {name}", "listen", "control", "directory", **more)


def joined(*names: str) -> tuple[Members, Store]:
    store = Store()
    members = Members(store)
    for name in names:
        members.join(member(name))
    return members, store


@given(
    st.lists(
        st.builds(Member, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, st.sampled_from(MemberStatus), TEXTS), max_size=3
    )
)
def test_written_data_is_read_back(members: list[Member]) -> None:
    by_name = {found.name: found for found in members}
    assert members_of(written(by_name), PATH) == by_name


def test_a_file_without_a_format_number_is_the_members_alone() -> None:
    old = {"a": member("a").as_dict()}
    assert members_of(json.dumps(old).encode(), PATH) == {"a": member("a")}
    named_format = {"format": member("format").as_dict()}
    assert members_of(json.dumps(named_format).encode(), PATH) == {"format": member("format")}


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b"7", b'{"a": 1}', b'{"a": {}}', b'{"format": 2}', b'{"format": 2, "gateways": []}', b"\xff"],
)
def test_a_damaged_file_is_refused_with_a_next_step(document: bytes) -> None:
    with pytest.raises(StorageError) as caught:
        Members(Store(document))
    assert "names the gateways of the pipeline" in caught.value.sentence
    assert "Restore the file from a copy" in caught.value.next_step


def test_a_file_of_a_later_version_is_not_called_damaged() -> None:
    with pytest.raises(StorageError, match=f"reads formats 1 to {FORMAT}"):
        Members(Store(json.dumps({"format": FORMAT + 1, "gateways": {}}).encode()))


@pytest.mark.parametrize("missing", ["name", "identity", "listen", "control", "directory", "flight"])
def test_a_gateway_says_all_its_addresses(missing: str) -> None:
    fields = member("a").as_dict()
    for value in (None, 7):
        with pytest.raises(RemoteProtocolError, match="its name"):
            Member.from_dict({**fields, missing: value})
    del fields[missing]
    with pytest.raises(RemoteProtocolError, match="its name"):
        Member.from_dict(fields)


def test_a_gateway_has_one_of_the_known_relations_to_the_pipeline() -> None:
    fields = member("a").as_dict()
    assert Member.from_dict({name: fields[name] for name in fields if name not in ("standing", "machine")}) == member(
        "a"
    )
    with pytest.raises(RemoteProtocolError, match="here, leaving or left"):
        Member.from_dict({**fields, "standing": "away"})


def test_what_was_loaded_is_saved_again_before_it_is_used() -> None:
    document = written({"a": member("a")})
    store = Store(document)
    Members(store)
    assert (store.saves, store.document) == (1, document)
    empty = Store()
    Members(empty)
    assert empty.saves == 0, "a pipeline without members has no file"


def test_a_change_that_cannot_be_saved_is_not_made() -> None:
    members, store = joined("a")
    store.is_full = True
    with pytest.raises(StorageError):
        members.join(member("b"))
    with pytest.raises(StorageError):
        members.stand("a", MemberStatus.LEFT)
    assert "a" in members
    assert "b" not in members
    assert not members.knows("id of b")
    assert list(members.present) == ["a"]


def test_nothing_is_saved_if_nothing_changes() -> None:
    members, store = joined("a")
    members.join(member("a"))
    members.stand("a", MemberStatus.HERE)
    assert store.saves == 1


def test_a_gateway_without_a_name_gets_the_next_free_one() -> None:
    members, _ = joined("gateway-2")
    names = [members.join(member("", f"id {number}")).name for number in range(3)]
    assert names == ["gateway-1", "gateway-3", "gateway-4"]


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "-", "ü/", "a" * (NAME_CHARS_MAX + 1)])
def test_a_name_is_letters_digits_and_dashes(name: str) -> None:
    members, store = joined()
    with pytest.raises(ConfigError, match="not a valid name"):
        members.join(member(name))
    assert store.saves == 0


def test_the_longest_name_is_taken() -> None:
    members, _ = joined("a_b-1" + "c" * (NAME_CHARS_MAX - 5))
    assert len(members.present) == 1


@pytest.mark.parametrize(
    ("name", "identity"), list(itertools.product(["", "a", "b", "c"], ["id of a", "id of b", "id of c"]))
)
def test_a_name_and_a_directory_stay_together(name: str, identity: str) -> None:
    members, _ = joined("a", "b")
    owner = {"id of a": "a", "id of b": "b"}.get(identity)
    taken = name in ("a", "b")
    if owner is None and taken:
        with pytest.raises(ConfigError, match=f"gateway '{name}'.* another directory"):
            members.join(member(name, identity))
    elif owner is not None and name not in ("", owner):
        with pytest.raises(ConfigError, match=f"'{owner}'"):
            members.join(member(name, identity))
    else:
        expected = owner or name or "gateway-1"
        assert members.join(replace(member(name, identity), listen="elsewhere")).name == expected
        assert members[expected].listen == "elsewhere"
        assert members.knows(identity)


@pytest.mark.parametrize("standing", [MemberStatus.HERE, MemberStatus.LEAVING, MemberStatus.LEFT])
def test_a_gateway_that_comes_back_is_here_unless_it_was_leaving(standing: MemberStatus) -> None:
    members, store = joined("a")
    members.stand("a", standing)
    back = Members(Store(store.document)).join(member("a"))
    assert back.standing is (MemberStatus.LEAVING if standing is MemberStatus.LEAVING else MemberStatus.HERE)


def test_who_has_left_is_listed_apart_and_gets_no_producers() -> None:
    members, _ = joined("d", "c", "b", "a")
    members.stand("b", MemberStatus.LEAVING)
    members.stand("c", MemberStatus.LEFT)
    members.stand("d", MemberStatus.LEFT)
    assert list(members.present) == ["a", "b"]
    assert members.left == ["c", "d"]
    everyone = {name: replace(members[name], listen=f"at {name}") for name in "abcd"}
    assert others_than("x", everyone) == ["at a"]
    assert others_than("a", everyone) == []


def test_an_abandoned_gateway_is_refused_forever_and_stays_on_disk() -> None:
    members, store = joined("gateway-0", "gateway-1")
    assert members.abandon("gateway-1", "id of gateway-1") == "gateway-1"
    assert members.abandon("gateway-9", "never seen") == "gateway-9", "also one that is not known here"
    again = Members(Store(store.document))
    assert list(again.present) == ["gateway-0"]
    assert again.left == ["gateway-1", "gateway-9"]
    for returning in (member("gateway-1"), member("", "never seen"), member("gateway-9"), member("x", "never seen")):
        with pytest.raises(ConfigError, match="was abandoned"):
            again.join(returning)
    assert again.join(member("", "another")).name == "gateway-2"


def test_an_abandoned_gateway_is_known_by_its_directory() -> None:
    members, _ = joined("gateway-0", "gateway-1")
    assert members.abandon("a name of old", "id of gateway-1") == "gateway-1"
    assert list(members.present) == ["gateway-0"]
