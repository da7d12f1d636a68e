"""Changes in words to the inventory as it would be, and what the planner makes of them."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, Spread
from planner.advice.changes import Change, FabricRate, LinkRate, MoreHost, NicRate, WithoutHost, apply_changes
from planner.advice.what_if import parse_changes
from planner.advice.what_if import what_if as parsed_what_if
from planner.cost.collectives import tcp_payload_share
from planner.cost.gpu_speeds import MEMORY_MIB, MEMORY_TB_PER_S
from planner.layout.verify import verify
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

BED = cpu_inventory([2, 2])


def what_if(inventory: Inventory, text: str) -> Inventory:
    """The inventory with the changes in `text`."""
    return apply_changes(inventory, parse_changes(text, inventory))


def measured(hosts: tuple[str, str], clusters: tuple[str, str]) -> Link:
    """One test over eth0."""
    return Link(
        kind="between",
        network="shared",
        clusters=clusters,
        hosts=hosts,
        devices=("eth0", "eth0"),
        method="tcp",
        streams=4,
        direction="forward",
        latency_s=Spread(min=1e-3, median=2e-3),
        bandwidth_bytes_per_s=Spread(min=1e6, median=1e6),
        samples=3,
    )


def shared_rates(inventory: Inventory) -> dict[str, float | None]:
    assert inventory.shared is not None
    return {port.host: port.bandwidth_bytes_per_s for port in inventory.shared.ports}


def test_link_changes_the_shared_ports_of_its_two_clusters_alone() -> None:
    rates = shared_rates(what_if(cpu_inventory([1, 2, 1]), "link:a-b=10Gb/s"))
    assert rates == {"a1": 10 * GBPS, "b1": 10 * GBPS, "b2": 10 * GBPS, "c1": 0.1 * GBPS}


def test_faster_link_raises_the_slow_ports_and_slower_lowers_the_fast_ones() -> None:
    mixed = what_if(BED, "nic:a1/eth0=25Gb/s")
    assert shared_rates(what_if(mixed, "link:a-b=10Gb/s"))["a1"] == 25 * GBPS
    assert set(shared_rates(what_if(mixed, "link:a-b=50Mb/s")).values()) == {0.05 * GBPS}


def test_link_keeps_the_latency_that_was_measured_and_changes_the_bandwidth() -> None:
    links = (measured(("a1", "b1"), ("a", "b")), measured(("a1", "c1"), ("a", "c")))
    changed = what_if(cpu_inventory([1, 1, 1]).model_copy(update={"links": links}), "link:b-a=1Gb/s")
    *known, b_to_c = changed.links
    assert [link.bandwidth_bytes_per_s.median for link in known] == [
        pytest.approx(GBPS * tcp_payload_share(None)),
        1e6,
    ]
    assert [link.latency_s for link in known] == [link.latency_s for link in links]
    assert (b_to_c.clusters, b_to_c.bandwidth_bytes_per_s.median) == (("b", "c"), 1e6)


def test_nic_changes_what_tests_through_it_measured() -> None:
    links = (measured(("a1", "b1"), ("a", "b")), measured(("a2", "b1"), ("a", "b")))
    changed = what_if(BED.model_copy(update={"links": links}), "nic:a2/eth0=1Gb/s")
    assert [link.bandwidth_bytes_per_s.median for link in changed.links] == [
        1e6,
        pytest.approx(GBPS * tcp_payload_share(None)),
    ]


def test_cluster_names_may_hold_dashes() -> None:
    a, b = BED.clusters
    named = (a.model_copy(update={"name": "ib-1"}), b.model_copy(update={"name": "roce-1"}))
    changed = what_if(BED.model_copy(update={"clusters": named}), "link:ib-1-roce-1=200Mb/s")
    assert set(shared_rates(changed).values()) == {0.2 * GBPS}


def with_clusters(*names: str) -> Inventory:
    """A cluster of one host for each name, all on one shared network."""
    fleet = cpu_inventory([1] * len(names))
    clusters = [cluster.model_copy(update={"name": name}) for cluster, name in zip(fleet.clusters, names, strict=True)]
    return fleet.model_copy(update={"clusters": tuple(clusters)})


def test_text_that_names_two_pairs_of_clusters_is_refused_with_both() -> None:
    with pytest.raises(HolmesError) as caught:
        what_if(with_clusters("a", "b-c", "a-b", "c"), "link:a-b-c=1Gb/s")
    assert "'a-b-c' is ambiguous: clusters 'a' and 'b-c' or 'a-b' and 'c'" in caught.value.what
    assert caught.value.exit_code == 2


def test_text_that_names_one_pair_of_clusters_in_two_orders_is_read() -> None:
    changed = what_if(with_clusters("a", "a-a"), "link:a-a-a=1Gb/s")
    assert set(shared_rates(changed).values()) == {GBPS}


def test_link_as_a_record_is_that_of_its_two_clusters_whatever_their_names() -> None:
    changed = LinkRate(("a", "b-c"), GBPS).applied_to(with_clusters("a", "b-c", "a-b", "c"))
    assert shared_rates(changed) == {"a1": GBPS, "b1": GBPS, "c1": 0.1 * GBPS, "d1": 0.1 * GBPS}


def test_link_to_a_cluster_that_an_earlier_change_empties_is_refused() -> None:
    with pytest.raises(HolmesError, match=r"link:a-b=1Gb/s: no cluster 'b' in the inventory \(a\)"):
        what_if(cpu_inventory([1, 1]), "-host:b1,link:a-b=1Gb/s")


def test_fabric_with_rdma_gets_the_rate_on_rdma() -> None:
    port = what_if(gpu_inventory([2, 2]), "fabric:a=3200Gb/s").clusters[0].fabric.ports[0]
    assert port.rdma_bandwidth_bytes_per_s == 3200 * GBPS
    assert port.bandwidth_bytes_per_s == 100 * GBPS


def test_nic_changes_its_host_alone() -> None:
    changed = what_if(BED, "nic:a2/eth1=25Gb/s")
    assert [port.bandwidth_bytes_per_s for port in changed.clusters[0].fabric.ports] == [2 * GBPS, 25 * GBPS]
    assert changed.host("a2").netdevs[1].speed_bytes_per_s == 25 * GBPS
    assert changed.shared == BED.shared


def test_rdma_device_changes_its_share_of_the_fabric() -> None:
    rails = tuple(
        Nic.model_validate(
            {"device": f"mlx5_{i}", "port": 1, "kind": "InfiniBand", "rate_gbps": 200, "state": "Active"}
            | {"phys_state": None, "netdev": None, "subnet_prefix": None, "sm_lid": None}
            | {"usable_by_nccl_ib": True, "why": ""}
        )
        for i in range(8)
    )
    fleet = gpu_inventory([2, 2])
    hosts = tuple(host.model_copy(update={"nics": rails}) for host in fleet.hosts)
    changed = what_if(fleet.model_copy(update={"hosts": hosts}), "nic:a1/mlx5_0=25Gb/s")
    rates = [port.rdma_bandwidth_bytes_per_s for port in changed.clusters[0].fabric.ports]
    assert rates == [(7 * 200 + 25) * GBPS, 1600 * GBPS]


def test_added_host_is_planned_on_like_the_one_it_copies() -> None:
    changed = what_if(BED, "+host:a3=like:a2")
    assert [host.name for host in changed.hosts] == ["a1", "a2", "a3", "b1", "b2"]
    plan = plan_for(changed, bed_job(global_batch_size=30, parallel={"pp": 1, "dp": 5}))
    assert [node.host for node in plan.nodes] == ["a1", "a2", "a3", "b1", "b2"]
    assert verify(plan, changed) == []


def test_removed_host_is_gone_and_an_empty_cluster_with_it() -> None:
    changed = what_if(BED, "-host:b1,-host:b2")
    assert [cluster.name for cluster in changed.clusters] == ["a"]
    assert set(shared_rates(changed)) == {"a1", "a2"}


def test_changes_joined_by_commas_follow_one_another() -> None:
    changed = what_if(BED, "+host:a3=like:a1, -host:a1,nic:a3/eth0=1Gb/s")
    assert changed.clusters[0].hosts == ("a2", "a3")
    assert shared_rates(changed)["a3"] == GBPS


def test_changed_inventory_is_still_a_valid_record() -> None:
    for text in ("link:a-b=10Gb/s", "fabric:a=10Gb/s", "nic:a1/eth0=1Gb/s", "+host:x=like:a1", "-host:a1"):
        changed = what_if(BED, text)
        assert Inventory.model_validate(changed.model_dump()) == changed


@pytest.mark.slow
def test_faster_link_between_clusters_makes_the_step_faster_and_a_slower_one_slower() -> None:
    fleet, job = gpu_inventory([2, 2], shared_gbps=1), gpt_7b(parallel={"pp": 4, "dp": 8})
    seconds = {
        text: plan_for(what_if(fleet, text), job).prediction.step_s
        for text in ("link:a-b=1Gb/s", "link:a-b=100Gb/s", "link:a-b=100Mb/s")
    }
    assert seconds["link:a-b=100Gb/s"] < seconds["link:a-b=1Gb/s"] < seconds["link:a-b=100Mb/s"]
    assert seconds["link:a-b=1Gb/s"] == plan_for(fleet, job).prediction.step_s


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a valid change"),
        ("link", "not a valid change"),
        ("link:a-b", "not a valid change"),
        ("link:a-b=fast", "'fast' is not a rate"),
        ("link:a-b=10GB/s", "'10GB/s' is not a rate"),
        ("link:a-b=-1Gb/s", "'-1Gb/s' is not a rate"),
        ("link:a-b=0Gb/s", "'0Gb/s' is not a rate above zero"),
        ("link:a-b=nanGb/s", "'nanGb/s' is not a rate"),
        ("link:a-z=10Gb/s", "'a-z' does not name two clusters of the inventory (a, b)"),
        ("link:a-a=10Gb/s", "'a-a' does not name two clusters"),
        ("fabric:z=10Gb/s", "no cluster 'z' in the inventory (a, b)"),
        ("nic:a1/eth7=10Gb/s", "host a1 has no interface 'eth7' (eth0, eth1)"),
        ("nic:z/eth0=10Gb/s", "no reachable host 'z' in the inventory (a1, a2, b1, b2)"),
        ("+host:a3", "not a valid change"),
        ("+host:a3=like:z", "no reachable host 'z'"),
        ("+host:a2=like:a1", "host 'a2' is already in the inventory"),
        ("-host:z", "no reachable host 'z'"),
    ],
)
def test_change_that_cannot_be_made_is_refused_with_the_forms(text: str, why: str) -> None:
    with pytest.raises(HolmesError) as caught:
        what_if(BED, text)
    assert f"--what-if {text}: " in caught.value.what
    assert why in caught.value.what
    assert "`link:CLUSTER-CLUSTER=10Gb/s`" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("link:a-b=10Gb/s", LinkRate(("a", "b"), 10 * GBPS)),
        ("fabric:a=1.5Gb/s", FabricRate("a", 1.5 * GBPS)),
        ("fabric:b=12800Gb/s", FabricRate("b", 12800 * GBPS)),
        ("nic:a1/eth0=100Mb/s", NicRate("a1", "eth0", 0.1 * GBPS)),
        ("+host:a3=like:a1", MoreHost("a3", like="a1")),
        ("-host:a1", WithoutHost("a1")),
    ],
)
def test_change_is_written_as_it_is_read(text: str, change: Change) -> None:
    assert parse_changes(text, BED) == (change,)
    assert str(change) == text


@pytest.mark.slow
def test_gpus_of_another_product_have_its_memory_and_links() -> None:
    inventory = what_if(gpu_inventory([1, 1]), "gpu:b=H100")
    gpus = {host.name: host.gpus[0] for host in inventory.hosts}
    assert gpus["b1"].name == "NVIDIA H100 SXM"
    assert gpus["b1"].memory_bytes == 81559 * 2**20
    assert gpus["a1"].name == gpu_inventory([1, 1]).host("a1").gpus[0].name
    assert plan_for(inventory, gpt_7b()).prediction.step_s < plan_for(gpu_inventory([1, 1]), gpt_7b()).prediction.step_s


@pytest.mark.parametrize(("product", "nvlinks"), [("B200", 18), ("GB300", 18), ("A100 40GB", 12), ("L40S", 0)])
def test_gpus_of_another_product_are_joined_as_it_is_sold(product: str, nvlinks: int) -> None:
    (gpu, *_) = what_if(gpu_inventory([1, 1]), f"gpu:b={product}").host("b1").gpus
    assert (gpu.nvlinks_up, gpu.nvlinks_total) == (nvlinks, nvlinks)


def test_a_rate_that_no_tool_reaches_counts_where_links_were_measured() -> None:
    inventory = gpu_inventory([1, 1], shared_gbps=100).model_copy(
        update={"links": (measured(("a1", "b1"), ("a", "b")),)}
    )
    slower = Networks(what_if(inventory, "link:a-b=50Gb/s"), gpt_7b()).rates("a1").shared_bytes_per_s
    assert slower == pytest.approx(50 * GBPS * tcp_payload_share(None))


def test_every_product_with_a_speed_has_a_memory_size() -> None:
    assert set(MEMORY_MIB) == set(MEMORY_TB_PER_S)


@pytest.mark.parametrize("text", ["gpu:b=Z9000", "gpu:c=H100", "tp=0", "schedule=none", "dp=33", "dp=4, dp=2"])
def test_gpus_and_degrees_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(HolmesError, match="--what-if"):
        parsed_what_if(text, BED, bed_job())


def test_a_degree_is_fixed_next_to_a_changed_inventory() -> None:
    inventory, job = parsed_what_if("link:a-b=1Gb/s, pp=1, dp=4", BED, bed_job(parallel={"tp": 1}))
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp) == (1, 1, 4)
    assert set(shared_rates(inventory).values()) == {GBPS}
