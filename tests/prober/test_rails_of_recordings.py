"""Rails, routes and clusters of recorded machines, against what each expected.json says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prober.fabrics.fabric import fabric_of
from prober.rails.choose_rails import rails_of, with_rails
from tests.prober.test_expected_findings import audited, expected
from tests.prober.test_recordings import expected as expected_of
from tests.prober.test_recordings import scenarios, with_scenarios

RAILS = [folder for folder in scenarios() if isinstance(expected_of(folder).get("rails"), list)]


@pytest.mark.parametrize("folder", RAILS, ids=lambda folder: folder.name)
def test_rails_are_those_of_the_machine_in_their_order(folder: Path) -> None:
    wanted, host = expected(folder.name), audited(folder.name).hosts[0]
    assert [nic.hca for nic in rails_of(host)] == wanted["rails"]
    reasons = {nic.hca: nic.rail_why for nic in host.nics}
    assert [hca for hca, why in wanted.get("no_rails", {}).items() if why not in reasons[hca]] == []


@with_scenarios("stated_rails")
def test_stated_rails_of_a_machine_are_its_rails(folder: Path) -> None:
    stated = expected(folder.name)["stated_rails"]
    host = with_rails(audited(folder.name).hosts[0], stated["patterns"])
    assert [nic.hca for nic in rails_of(host)] == stated["rails"]


@with_scenarios("routes", "masters", "gid_netdevs")
def test_where_the_ports_of_a_machine_lead(folder: Path) -> None:
    wanted, host = expected(folder.name), audited(folder.name).hosts[0]
    if "routes" in wanted:
        assert [[route.prefix, route.netdev, route.table] for route in host.routes] == wanted["routes"]
        assert host.default_route_netdev == wanted["default_route"]
    if "masters" in wanted:
        assert {netdev.name: netdev.master for netdev in host.netdevs if netdev.master} == wanted["masters"]
        assert fabric_of(host).networks == {wanted["network"]}
    if "gid_netdevs" in wanted:
        found = {nic.hca: list(dict.fromkeys(gid.netdev for gid in nic.gids)) for nic in host.nics}
        assert found == wanted["gid_netdevs"]


@pytest.mark.parametrize(
    "sister", ["h100-ndr-8rail-bf3-bond", "h20-ib-eight-rails-pci-names", "epyc-four-ib-rails", "k8s-ipoib-one-port"]
)
def test_two_recorded_nodes_of_one_fabric_are_one_cluster_and_others_are_not(sister: str) -> None:
    from prober.fabrics.clusters import find_clusters

    hosts = [audited(name).hosts[0] for name in ("h20-ib-eight-rails-front-end-bond", sister)]
    clusters, _ = find_clusters(hosts, {})
    assert len(clusters) == (1 if sister == "h20-ib-eight-rails-pci-names" else 2)
