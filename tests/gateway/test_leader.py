"""The leader of several gateways: late messages and replaced links do not move a stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.errors import ConfigError, RemoteProtocolError, RoundError, StorageError
from procession.gateway.gateway_directory import MemberFile
from procession.gateway.gateway_limits import Limits
from procession.gateway.leader import Leadership
from procession.gateway.log_rows import LogTail
from procession.gateway.members import Member, Members, MemberStatus
from procession.gateway.state import GatewayState


def member(name: str, identity: str | None = None) -> Member:
    return Member(name, identity or f"of {name}", "127.0.0.1:1", "127.0.0.1:2", "directory")


@pytest.fixture
def leadership(tmp_path: Path) -> Leadership:
    state = GatewayState(Limits(), is_leading=True)
    leads = Leadership(Members(MemberFile(tmp_path)), state, lambda event: None)
    leads.begin(member("gateway-0"))
    return leads


def test_an_abandoned_join_that_arrives_late_changes_nothing(leadership: Leadership) -> None:
    link, _ = leadership.join(member("gateway-1"), [], {}, 0, (3, 2))
    assert leadership.notify(link, 7)["granted"]
    for late in ((3, 1), (2, 9)):
        with pytest.raises(RemoteProtocolError, match="later link"):
            leadership.join(member("gateway-1"), [], {}, 0, late)
    assert leadership.registry.active == {7: "gateway-1"}
    leadership.join(member("gateway-1"), [7], {}, 0, (4, 1))
    assert leadership.registry.active == {7: "gateway-1"}


def test_a_replaced_link_gets_the_reason_and_is_not_refused_forever(leadership: Leadership) -> None:
    old, _ = leadership.join(member("gateway-1"), [], {}, 0, (1, 1))
    new, _ = leadership.join(member("gateway-1"), [], {}, 0, (1, 2))
    assert not leadership.notify(old, 7)["granted"]
    with pytest.raises(RemoteProtocolError, match="has replaced this link"):
        leadership.beat(old)
    leadership.lost(old)
    assert leadership.beat(new) == {"is_leaving": False, "others": [], "epoch": -1}
    leadership.leave("gateway-1")
    assert leadership.beat(new) == {"is_leaving": True, "others": ["127.0.0.1:1"], "epoch": -1}
    assert leadership.notify(new, 7)["granted"]


def test_a_relinquished_stream_keeps_its_name_at_the_leader(tmp_path: Path) -> None:
    """Its holder may leave next, and no other gateway knows the name."""
    state = GatewayState(Limits(), is_leading=True)
    leads = Leadership(Members(MemberFile(tmp_path)), state, lambda event: None)
    leads.begin(member("gateway-0"))
    link, _ = leads.join(member("gateway-1"), [7, 8], {}, 0)
    leads.given_up(link, 7, 41, None, "orders")
    leads.given_up(link, 8, None, None, "nothing came of it")
    assert state.registry[7].name == "orders"
    assert 8 not in state.registry
    assert state.registry.positions({7: 41})[7].name == "orders", "so a snapshot has the name, too"


def test_the_leader_retires_no_stream_that_a_gateway_holds_or_may_hold(tmp_path: Path) -> None:
    members = Members(MemberFile(tmp_path))
    members.join(member("gateway-0"))
    members.join(member("gateway-1"))
    state = GatewayState(Limits(), is_leading=True)
    leads = Leadership(members, state, lambda event: None)
    leads.begin(member("gateway-0"))
    assert state.retirement.is_granted(7), "gateway-1 has not reported its streams"
    link, _ = leads.join(member("gateway-1"), [7], {}, 0)
    assert state.retirement.is_granted(7)
    leads.given_up(link, 7, 41)
    assert not state.retirement.is_granted(7)


def test_a_gateway_whose_log_is_not_confirmed_may_not_leave(tmp_path: Path) -> None:
    members = Members(MemberFile(tmp_path))
    members.join(member("gateway-0"))
    members.join(member("gateway-1"))
    leads = Leadership(members, GatewayState(Limits(), is_leading=True), lambda event: None)
    leads.begin(member("gateway-0"))
    link, _ = leads.join(member("gateway-1"), [7], {}, 0, is_confirmed=False)
    leads.leave("gateway-1")
    assert not leads.left(link, 0), "its streams are not known"


def test_a_gateway_may_leave_only_when_it_holds_nothing_and_the_leader_has_its_epochs(leadership: Leadership) -> None:
    link, _ = leadership.join(member("gateway-1"), [7], {}, 0)
    leadership.leave("gateway-1")
    assert leadership.beat(link)["is_leaving"]
    assert not leadership.left(link, 0), "it holds a stream"
    leadership.given_up(link, 7, 41)
    assert not leadership.left(link, 1), "the leader knows no epoch: without this gateway, id 41 would be lost"
    assert leadership.left(link, 0)
    assert list(leadership.gateways) == ["gateway-0"]


def test_a_name_belongs_to_its_directory_also_after_a_restart_of_the_leader(tmp_path: Path) -> None:
    members = Members(MemberFile(tmp_path))
    assert [members.join(member("", identity)).name for identity in "ab"] == ["gateway-1", "gateway-2"]
    members.stand("gateway-1", MemberStatus.LEFT)
    again = Members(MemberFile(tmp_path))
    assert list(again.present) == ["gateway-2"]
    assert again.join(member("", "c")).name == "gateway-3"
    with pytest.raises(ConfigError, match=r"already a gateway .* with another directory"):
        again.join(member("gateway-1", "d"))
    assert again.join(member("", "a")).name == "gateway-1"
    assert again["gateway-1"].standing is MemberStatus.HERE


def test_records_of_a_forgotten_gateway_are_accepted_only_if_no_other_has_committed_them(
    leadership: Leadership,
) -> None:
    """The leader's directory is an older copy: gateway-1 joined after it was made, and no driver has read from it."""
    link, _ = leadership.join(member("gateway-2"), [], {}, 0)
    for stream_id in (7, 8):
        assert leadership.notify(link, stream_id)["granted"]
        leadership.given_up(link, stream_id, 41)
    for known in ({}, {7: 40}):
        with pytest.raises(ConfigError, match="records of stream 7 that others have sent"):
            leadership.join(member("gateway-1"), [7], known, 0)
    leadership.join(member("gateway-1"), [8, 9], {8: 41}, 0)
    assert leadership.registry.active == {8: "gateway-1", 9: "gateway-1"}


def test_a_directory_of_another_pipeline_is_refused(leadership: Leadership) -> None:
    with pytest.raises(ConfigError, match="used by another pipeline"):
        leadership.join(member("gateway-1"), [], {}, 100)


def test_a_leader_whose_log_has_records_of_a_stream_that_another_gateway_holds_is_refused(tmp_path: Path) -> None:
    """Such a log is an older copy: the stream moved after its records were committed or lost."""
    members = Members(MemberFile(tmp_path))
    members.join(member("gateway-0"))
    members.join(member("gateway-1"))
    state = GatewayState(Limits(), tail=LogTail(seen={7: 5}), next_sequence=3, is_leading=True)
    leads = Leadership(members, state, lambda event: None)
    leads.begin(member("gateway-0"), is_confirmed=False)
    link, _ = leads.join(member("gateway-1"), [7], {}, 0)
    with pytest.raises(StorageError, match=r"gateway-0 is not the one .* records of stream 7, which gateway-1 holds"):
        leads.lead()
    leads.given_up(link, 7, 5)
    leads.lead()


def test_the_streams_of_an_abandoned_gateway_are_granted_to_others(leadership: Leadership) -> None:
    lost, _ = leadership.join(member("gateway-1"), [], {}, 0)
    other, _ = leadership.join(member("gateway-2"), [], {}, 0)
    assert leadership.notify(lost, 7)["granted"]
    assert not leadership.notify(other, 7)["granted"]
    leadership.abandon("gateway-1", "of gateway-1", 0)
    assert leadership.notify(other, 7)["granted"]


def test_an_abandoned_gateway_can_do_nothing_on_its_link_and_gets_no_other(leadership: Leadership) -> None:
    zombie, _ = leadership.join(member("gateway-1"), [7], {}, 0)
    other, _ = leadership.join(member("gateway-2"), [], {}, 0)
    leadership.abandon("gateway-1", "of gateway-1", 0)
    assert leadership.notify(other, 7)["granted"]
    assert not leadership.notify(zombie, 8)["granted"]
    assert leadership.given_up(zombie, 7, 99) == {"was_held": False}
    assert not leadership.left(zombie, 0)
    with pytest.raises(RemoteProtocolError):
        leadership.beat(zombie)
    for returning in (member("gateway-1"), member("gateway-9", "of gateway-1")):
        with pytest.raises(ConfigError, match="was abandoned"):
            leadership.join(returning, [7], {7: 99}, 0)
    with pytest.raises(ConfigError, match="was abandoned"):
        leadership.join(member("gateway-1", "a new directory"), [], {}, 0)
    assert leadership.registry.active == {7: "gateway-2"}
    assert leadership.departed == ["gateway-1"]
    assert "gateway-1" in leadership.names, "the driver knows it, and a leader's list must have it"


def test_a_leader_that_lacks_the_last_commit_does_not_let_streams_go(leadership: Leadership) -> None:
    """It would let them continue at an older position, and committed records would come twice."""
    lost, _ = leadership.join(member("gateway-1"), [7], {}, 0)
    with pytest.raises(RoundError, match="lacks the last commit"):
        leadership.abandon("gateway-1", "of gateway-1", 1)
    assert leadership.registry.active == {7: "gateway-1"}
    assert leadership.beat(lost)


def test_a_restarted_leader_does_not_wait_for_an_abandoned_gateway(tmp_path: Path) -> None:
    members = Members(MemberFile(tmp_path))
    members.join(member("gateway-0"))
    members.join(member("gateway-1"))
    leads = Leadership(members, GatewayState(Limits(), is_leading=True), lambda event: None)
    leads.begin(member("gateway-0"))
    other, _ = leads.join(member("gateway-2"), [], {}, 0)
    assert not leads.notify(other, 7)["granted"]
    leads.abandon("gateway-1", "of gateway-1", 0)
    assert leads.notify(other, 7)["granted"]
    again = Leadership(Members(MemberFile(tmp_path)), GatewayState(Limits(), is_leading=True), lambda event: None)
    assert again.registry.unreported == ["gateway-0", "gateway-2"], "it is on disk who is waited for"


def test_the_leader_itself_is_not_abandoned(leadership: Leadership) -> None:
    with pytest.raises(ConfigError, match="leads"):
        leadership.abandon("gateway-0", "of gateway-0", 0)
