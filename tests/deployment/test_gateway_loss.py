"""The command that abandons a gateway: what it refuses, what it stores, and when it is carried out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations
from procession.deployment.gateway_loss import abandon_gateway, is_carried_out
from procession.driver.driver_reports import PLAN
from procession.errors import ConfigError, UsageError
from procession.planner.guarantee import Guarantee
from procession.sos.replicated_files import MARKER
from procession.storage.driver_claim import checkpoint_of
from procession.storage.log_ranges import LogLocation


def claim(directory: Path) -> Checkpoint:
    return Checkpoint.claim(checkpoint_of(directory), name="p", fingerprint="f")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A stopped pipeline of three gateways, the last of which no driver has read from."""
    places = claim(tmp_path).places
    for name in ("gateway-0", "gateway-1", "gateway-2"):
        places.keep(name, LogLocation(f"/nowhere/{name}/log", f"of {name}"))
    return tmp_path


def test_the_next_driver_carries_it_out(pipeline: Path) -> None:
    fence = abandon_gateway(pipeline, "gateway-1", b"")
    found = LogLocations(checkpoint_of(pipeline)).abandoned["gateway-1"]
    assert (found.identity, found.fence) == ("of gateway-1", fence)
    assert not is_carried_out(pipeline, fence, 0.0)
    claim(pipeline)
    assert is_carried_out(pipeline, fence, 0.0)


def test_the_command_may_be_repeated(pipeline: Path) -> None:
    fence = abandon_gateway(pipeline, "gateway-1", b"")
    claim(pipeline)
    assert abandon_gateway(pipeline, "gateway-1", b"") == fence


def test_a_directory_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        abandon_gateway(tmp_path, "gateway-1", b"")


def test_a_name_that_is_not_of_this_pipeline_is_refused(pipeline: Path) -> None:
    with pytest.raises(ConfigError, match="'gateway-7' is not a gateway") as caught:
        abandon_gateway(pipeline, "gateway-7", b"")
    assert "gateway-0, gateway-1, gateway-2" in caught.value.next_step


def test_the_first_gateway_is_refused(pipeline: Path) -> None:
    with pytest.raises(ConfigError, match="is the first gateway"):
        abandon_gateway(pipeline, "gateway-0", b"")


def test_a_gateway_that_can_be_restored_is_abandoned_only_with_a_word(pipeline: Path) -> None:
    (pipeline / MARKER).write_text("{}")
    with pytest.raises(UsageError, match="has replicas") as caught:
        abandon_gateway(pipeline, "gateway-1", b"")
    assert "--restore" in caught.value.next_step
    abandon_gateway(pipeline, "gateway-1", b"", despite_replicas=True)
    assert list(LogLocations(checkpoint_of(pipeline)).abandoned) == ["gateway-1"]


@pytest.mark.parametrize("guarantee", Guarantee)
def test_records_that_are_acknowledged_before_their_commit_are_not_given_up(
    pipeline: Path, guarantee: Guarantee
) -> None:
    (pipeline / PLAN).write_text(json.dumps({"guarantee": guarantee.value}))
    refuses = pytest.raises(UsageError, match="'none'") if guarantee is Guarantee.NONE else nullcontext()
    with refuses:
        abandon_gateway(pipeline, "gateway-1", b"")


def test_with_event_time_order_it_is_refused(tmp_path: Path) -> None:
    places = claim(tmp_path).places
    for name in ("gateway-0", "gateway-1"):
        places.keep(name, LogLocation(f"/nowhere/{name}/ordered", f"of {name}"))
    with pytest.raises(UsageError, match="event-time order"):
        abandon_gateway(tmp_path, "gateway-1", b"")
    assert not LogLocations(checkpoint_of(tmp_path)).abandoned
