"""Sessions: who is admitted with which extensions, and what an ACK grants and confirms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.gateway.draft_groups import DraftGroups
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail
from procession.gateway.registry import Registry
from procession.gateway.sessions import SessionEntry, admit
from procession.gateway.snapshot import Position
from procession.wire import draft, v3
from procession.wire.draft_messages import AckCounts, Extension
from procession.wire.messages import Ack, Hello

REGISTRY = Registry({7: Position("seven", 41)}, LogTail())


def refusal(hello: Hello, limits: Limits, *, speaks_draft: bool = True) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        admit(hello, limits, speaks_draft=speaks_draft)
    return caught.value.sentence


def extensions() -> list[frozenset[Extension]]:
    return [frozenset(some) for count in range(3) for some in itertools.combinations(Extension, count)]


def test_version_3_has_no_extensions() -> None:
    assert admit(Hello(v3.SOURCE_VERSION, b"", "p", "i"), Limits(), speaks_draft=True) is None
    assert admit(Hello(v3.SOURCE_VERSION, b"", "p", "i"), Limits(), speaks_draft=False) is None


@pytest.mark.parametrize("allowed", extensions())
@pytest.mark.parametrize("wanted", extensions())
def test_the_draft_is_admitted_with_extensions_that_are_allowed(
    wanted: frozenset[Extension], allowed: frozenset[Extension]
) -> None:
    hello, limits = Hello(draft.version(wanted), b"", "p", "i"), Limits(extensions=allowed)
    assert "first of several gateways" in refusal(hello, limits, speaks_draft=False)
    if wanted <= allowed:
        assert admit(hello, limits, speaks_draft=True) == wanted
    else:
        assert "is not allowed here" in refusal(hello, limits)


@pytest.mark.parametrize("version", ["", "0.0.3", "draft+", "draft+other", "x" * 1000])
def test_another_version_is_refused_with_one_that_is_known(version: str) -> None:
    sentence = refusal(Hello(version, b"", "p", "i"), Limits())
    assert v3.SOURCE_VERSION in sentence
    assert len(sentence) < 200


COOKIES = (b"", b"a", b"b", b"ab")


@pytest.mark.parametrize("expected", COOKIES)
@pytest.mark.parametrize("given_cookie", COOKIES)
def test_a_cookie_must_be_the_expected_one(given_cookie: bytes, expected: bytes) -> None:
    hello, limits = Hello(v3.SOURCE_VERSION, given_cookie, "p", "i"), Limits(cookie=expected)
    if given_cookie == expected:
        admit(hello, limits, speaks_draft=True)
        return
    sentence = refusal(hello, limits)
    if not expected:
        assert sentence == "no cookie is expected here"
    elif not given_cookie:
        assert sentence == "a cookie is needed here"
    else:
        assert sentence == "bad cookie"


@given(owed=st.integers(0, 20), unspent=st.integers(0, 20), grantable=st.integers(0, 20))
def test_an_ack_grants_the_allowed_credits_and_always_those_of_frames_that_stored_nothing(
    owed: int, unspent: int, grantable: int
) -> None:
    unspent, grantable = min(unspent, owed), min(grantable, owed)
    session = SessionEntry(owed=owed, unspent=unspent)
    (ack,) = session.ack([(7, 41)], REGISTRY, grantable=grantable)
    assert ack == Ack(max(grantable, unspent), ((7, 41),))
    assert session.owed == owed - ack.credits
    assert session.unspent == max(0, unspent - ack.credits)
    assert session.was_acked
    assert session.owed >= session.unspent >= 0


def test_a_session_never_gets_more_credits_than_it_is_owed() -> None:
    session = SessionEntry(owed=2, unspent=9)
    assert session.ack([], REGISTRY, grantable=0) == [Ack(2, ())]
    assert (session.owed, session.unspent) == (0, 7)


def test_withheld_acks_are_sent_together_with_the_next_one_and_grant_nothing_before() -> None:
    session = SessionEntry(owed=10, stutter=2)
    assert session.ack([(7, 1), (8, 1)], REGISTRY, grantable=4) == []
    assert session.was_acked
    assert session.ack([(7, 2)], REGISTRY, grantable=4) == []
    assert session.owed == 10
    assert session.ack([(9, 3)], REGISTRY, grantable=4) == [Ack(4, ((7, 2), (8, 1), (9, 3)))]
    assert session.ack([], REGISTRY, grantable=0) == [Ack(0, ())], "nothing is confirmed twice"


@pytest.mark.parametrize("is_counting", [False, True])
def test_a_session_that_asked_for_counts_gets_them(is_counting: bool) -> None:
    groups = DraftGroups(100, is_counting=is_counting)
    groups.open(7)
    session = SessionEntry(owed=3, groups=groups)
    (ack,) = session.ack([(7, 41)], REGISTRY, grantable=1)
    assert ack == (AckCounts(1, ((7, 41, 0),)) if is_counting else Ack(1, ((7, 41),)))
