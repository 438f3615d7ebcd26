"""The clusters with other systems: whose end is excused, and whose output shows that a part works."""

from __future__ import annotations

import pytest

from procession.chaos.scenario import CONTROL, DRIVER, GATEWAY, TO_GATEWAY, ClusterParts
from procession.chaos.system_parts import SYSTEM_CLUSTERS, link_to, output_of

ALL = pytest.mark.parametrize("cluster", SYSTEM_CLUSTERS, ids=lambda cluster: cluster.name)


def sinks(cluster: ClusterParts) -> list[str]:
    return [part for part in cluster.parts if part.startswith("sink-")]


def test_an_output_and_its_link_have_the_name_of_the_sink() -> None:
    assert (output_of("sink-topic"), link_to("sink-topic")) == ("topic", "driver-topic")


@ALL
def test_a_cluster_has_one_gateway_one_driver_and_a_link_to_each_sink(cluster: ClusterParts) -> None:
    assert cluster.parts.count(GATEWAY) == cluster.parts.count(DRIVER) == 1
    assert set(cluster.links) >= {TO_GATEWAY, CONTROL, *map(link_to, sinks(cluster))}
    assert len(set(cluster.parts)) == len(cluster.parts)
    assert len(set(cluster.links)) == len(cluster.links)


@ALL
def test_only_parts_of_the_cluster_depend_on_its_servers_and_on_the_links_to_them(cluster: ClusterParts) -> None:
    assert set(cluster.dependants) <= {*cluster.parts, *cluster.links}
    for dependants in cluster.dependants.values():
        assert set(dependants) <= set(cluster.parts) - {GATEWAY, DRIVER}
    assert not {GATEWAY, DRIVER, TO_GATEWAY, CONTROL} & set(cluster.dependants)


@ALL
def test_who_depends_on_a_server_depends_on_a_link_to_it_as_well_if_there_is_one(cluster: ClusterParts) -> None:
    by_server = {part for on, parts in cluster.dependants.items() if on in cluster.parts for part in parts}
    by_link = {part for on, parts in cluster.dependants.items() if on in cluster.links for part in parts}
    assert by_server == by_link


@ALL
def test_a_server_is_at_work_if_an_output_of_one_of_its_sinks_grows(cluster: ClusterParts) -> None:
    servers = set(cluster.dependants) & set(cluster.parts)
    assert set(cluster.outputs) == {*sinks(cluster), *servers}
    for sink in sinks(cluster):
        assert cluster.outputs[sink] == (output_of(sink),)
    for server in servers:
        used = [part for part in cluster.dependants[server] if part in sinks(cluster)]
        assert cluster.outputs[server] == tuple(map(output_of, used))


@ALL
def test_producers_of_files_send_to_the_gateway(cluster: ClusterParts) -> None:
    files = {part for part in cluster.parts if part.startswith("source-") and part != "source-kafka"}
    assert cluster.homes == dict.fromkeys(files, (GATEWAY,))
