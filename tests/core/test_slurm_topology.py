"""topology.conf of an inventory: all hosts below their clusters, and the hints that are a tree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.hosts.from_slurm import hosts_from_slurm
from holmes_core.hosts.slurm_topology import NOT_REACHED, TOP, slurm_topology
from holmes_core.records.access import Access
from holmes_core.records.inventory import Cluster, Hints, Host, Inventory, Network

Fleet = Mapping[str, tuple[str | None, tuple[str, ...]]]
"""By host its cluster, None where it was not reached, and the switches above it."""


def inventory_of_topology(fleet: Fleet, access: Access | None = None) -> Inventory:
    hosts = [
        Host(name=name, access=access or Access(), reachable=cluster is not None, hints=Hints(network=network))
        for name, (cluster, network) in fleet.items()
    ]
    members: dict[str, list[str]] = {}
    for name, (cluster, _) in fleet.items():
        if cluster is not None:
            members.setdefault(cluster, []).append(name)
    clusters = [
        Cluster(name=name, hosts=tuple(names), fabric=Network(name=name, kind="InfiniBand", subnet=None, ports=()))
        for name, names in members.items()
    ]
    return Inventory(hosts=tuple(hosts), clusters=tuple(clusters), shared=None, findings=())


def switches_read(topology: str, fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """The switches above each host, as the importer reads them back."""
    nodes = "".join(f"NodeName={name} State=IDLE\n" for name in fleet)
    return {entry.name: entry.hints.network for entry in hosts_from_slurm(nodes + topology, "x").hosts.hosts}


def test_a_switch_a_cluster_with_those_of_hints_below_it_and_one_above_all() -> None:
    fleet: Fleet = {
        "a1": ("ib-1", ("leaf-1",)),
        "a2": ("ib-1", ("leaf-1",)),
        "a3": ("ib-1", ("leaf-2",)),
        "a4": ("ib-1", ()),
        "b1": ("roce-1", ()),
        "c1": (None, ()),
    }
    lines = slurm_topology(inventory_of_topology(fleet)).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "SwitchName=leaf-1 Nodes=a1,a2",
        "SwitchName=leaf-2 Nodes=a3",
        "SwitchName=ib-1-rest Nodes=a4",
        "SwitchName=roce-1 Nodes=b1",
        "SwitchName=holmes-not-reached Nodes=c1",
        "SwitchName=ib-1 Switches=leaf-1,leaf-2,ib-1-rest",
        "SwitchName=holmes-all Switches=ib-1,roce-1,holmes-not-reached",
    ]


def test_the_file_names_the_inventory_it_is_from() -> None:
    found = inventory_of_topology({"a": ("ib-1", ())})
    assert slurm_topology(found).startswith(f"# Slurm topology.conf, from inventory {found.digest()}\n")


def test_hosts_reached_by_slurm_have_slurms_names() -> None:
    found = inventory_of_topology({"a": ("ib-1", ())}, Access(transport="slurm", address="nid0001"))
    assert "SwitchName=ib-1 Nodes=nid0001\n" in slurm_topology(found)


def test_a_label_that_contradicts_the_clusters_is_no_switch() -> None:
    fleet: Fleet = {"a": ("ib-1", ("leaf",)), "b": ("eth-1", ("leaf",)), "c": ("ib-1", ("eth-1",))}
    assert switches_read(slurm_topology(inventory_of_topology(fleet)), fleet) == {
        "a": ("ib-1", TOP),
        "b": ("eth-1", TOP),
        "c": ("ib-1", TOP),
    }


@pytest.mark.parametrize("label", ["a[1-2]", "a,b", "a#b", "MF0;sw:U1", 'a"'])
def test_a_label_that_slurm_cannot_read_is_refused_by_name(label: str) -> None:
    with pytest.raises(HolmesError) as error:
        slurm_topology(inventory_of_topology({"a": ("ib-1", (label,))}))
    assert repr(label) in error.value.what


@pytest.mark.parametrize("name", [TOP, NOT_REACHED])
def test_a_cluster_named_as_a_switch_of_ours_is_refused(name: str) -> None:
    with pytest.raises(HolmesError, match="pin another name"):
        slurm_topology(inventory_of_topology({"a": (name, ())}))


def test_two_hosts_of_one_name_in_slurm_are_refused() -> None:
    found = inventory_of_topology({"a": ("ib-1", ()), "b": ("ib-1", ())}, Access(transport="slurm", address="same"))
    with pytest.raises(HolmesError, match="two hosts have one name in Slurm"):
        slurm_topology(found)


names = st.from_regex(r"n[a-z0-9._-]{0,6}[a-z0-9]", fullmatch=True)
trees = st.fixed_dictionaries({"cluster": st.integers(0, 2), "leaf": st.integers(0, 2), "has_hints": st.booleans()})


@given(st.dictionaries(names, trees, min_size=1, max_size=12))
def test_an_inventorys_hosts_and_hints_come_back_from_slurm(places: dict[str, dict[str, int]]) -> None:
    fleet: Fleet = {
        name: (
            f"ib-{at['cluster']}",
            (f"leaf-{at['cluster']}-{at['leaf']}", f"spine-{at['cluster']}") if at["has_hints"] else (),
        )
        for name, at in places.items()
    }
    read = switches_read(slurm_topology(inventory_of_topology(fleet)), fleet)
    assert set(read) == set(fleet)
    for name, (cluster, network) in fleet.items():
        kept = tuple(switch for switch in read[name] if not switch.startswith(f"{cluster}-rest"))
        assert kept == (*network, cluster, TOP)


labels = st.lists(st.sampled_from(["s1", "s2", "s3", "c0", "c1", "c0-rest", TOP, NOT_REACHED]), max_size=4).map(tuple)


@given(st.dictionaries(names, st.tuples(st.sampled_from(["c0", "c1", None]), labels), min_size=1, max_size=10))
def test_whatever_hints_say_the_file_is_a_tree_with_all_hosts_below_their_clusters(fleet: Fleet) -> None:
    topology = slurm_topology(inventory_of_topology(fleet))
    lines = [line.split() for line in topology.splitlines() if not line.startswith("#")]
    switches = [line[0] for line in lines]
    below = [name for line in lines for name in line[1].partition("=")[2].split(",")]
    assert len(switches) == len(set(switches))
    assert len(below) == len(set(below))
    read = switches_read(topology, fleet)
    for name, (cluster, network) in fleet.items():
        assert read[name][-2:] == (cluster or NOT_REACHED, TOP)
        kept = [switch for switch in read[name][:-2] if switch in network]
        assert kept == sorted(kept, key=network.index)
