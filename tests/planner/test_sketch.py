"""Sketches: their text, their YAML, and inventories that equal the machines they describe."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.parse_record import parse
from holmes_core.records.record_file import read_user_file
from planner.cost.collectives import tcp_payload_share
from planner.cost.slot import NVLINK5_BYTES_PER_S, NVLINK_BYTES_PER_S, inside_path
from planner.problem.networks import Networks
from planner.sketch.known_parts import FABRICS, GPUS, known_gpu
from planner.sketch.sketch import MAX_HOSTS, Sketch, parse_sketch
from planner.sketch.sketched_inventory import sketched_inventory
from tests.planner.fleets import GBPS, gpt_7b, plan_for

CARDS = "a: 2 x 8 H100, IB 8x400, Ethernet 1x10; b: 2 x 8 H100, IB 8x400, Ethernet 1x20"
TWO = "a: 8 x 8 H100, IB 8x400; b: 4 x 8 A100-80, RoCE 2x200; 25 between"
PUBLIC = Path(__file__).parents[3] / "shared" / "moe" / "clusters.yaml"
PUBLIC_SKETCHES = {
    "dgx-h100-superpod": "a: 32 x 8 H100, IB 8x400, Ethernet 1x100",
    "dgx-b200-superpod": "a: 8 x 8 B200-180, IB 8x400, Ethernet 2x400",
    "aws-p4d.24xlarge": "a: 8 x 8 A100-40, EFA 4x100",
    "aws-p5en.48xlarge": "a: 4 x 8 H200-141, EFA 16x200",
    "gcp-a3-mega": "a: 4 x 8 H100, Ethernet 8x200, Ethernet 1x200",
    "gcp-a4": "a: 2 x 8 B200, RoCE 8x400, Ethernet 2x200",
    "azure-nd-h100-v5": "a: 8 x 8 H100, IB 8x400, Ethernet 1x80",
    "coreweave-h100": "a: 32 x 8 H100, IB 8x400, Ethernet 1x100",
    "dgx-spark-pair": "a: 2 x 1 GB10, RoCE 1x200, Ethernet 1x10",
}
ONE = "clusters:\n- {{name: a, hosts: 2, gpus_per_host: 8, gpu: L40S, {}}}"
REFUSED_KEYS = {
    "fabric: {kind: 5, gbps: 1}": "clusters.0.fabric.kind",
    "fabric: {kind: null, gbps: 1}": "clusters.0.fabric.kind",
    "fabric: {kind: [IB], gbps: 1}": "must be the name of a network (IB,",
    "fabric: IB 1, ethernet: {kind: 5, gbps: 1}": "clusters.0.ethernet",
    "fabric: IB 1, ethernet: {kind: null, gbps: 1}": "clusters.0.ethernet",
    "fabric: IB 1, ethernet: [Ethernet]": "clusters.0.ethernet",
    "fabric: [IB 1]": "clusters.0.fabric",
    "fabric: IB 1, gpu_memory_gib: true": "clusters.0.gpu_memory_gib",
    "fabric: IB 1, gpu_memory_gib: '80'": "clusters.0.gpu_memory_gib",
    "fabric: IB 1, gpu_memory_gib: 0.5": "clusters.0.gpu_memory_gib",
    "fabric: IB 1, memory_gib: true": "clusters.0.memory_gib",
    "fabric: IB 1, memory_gib: '80'": "clusters.0.memory_gib",
    "fabric: IB 1, memory_gib: 1e-9": "clusters.0.memory_gib",
    "fabric: IB 1, nvlink_hosts: 2": "clusters.0.nvlink_hosts: L40S has no NVLinks here",
    "fabric: IB 1, nvlink_hosts: 2, nvlinks: 0": "L40S has no NVLinks here",
}
KINDS = {"InfiniBand": "InfiniBand", "RoCE": "RoCE", "AWS EFA": "EFA", "Ethernet": "Ethernet"}  # as `fabric` begins


def public_clusters() -> list[dict[str, Any]]:
    return yaml.safe_load(PUBLIC.read_text(encoding="utf-8")) if PUBLIC.is_file() else []


def sketched(text: str) -> Inventory:
    return sketched_inventory(parse_sketch(text))


def from_yaml(**keys: Any) -> Inventory:
    """The inventory of one cluster of two hosts with these keys more; `top` are keys of the whole file."""
    top = keys.pop("top", {})
    cluster = {"name": "a", "hosts": 2, "gpus_per_host": 8, "gpu": "H100", "fabric": "IB 8x400", **keys}
    return sketched_inventory(parse(Sketch, {"clusters": [cluster, *top.pop("clusters", [])], **top}, "sketch.yaml"))


def test_a_line_of_text_is_the_machines_that_it_describes() -> None:
    inventory = sketched(TWO)
    assert inventory.sketch == TWO.replace("A100-80", "A100")
    a, b = inventory.clusters
    assert (a.hosts[-1], b.hosts[-1], len(inventory.hosts)) == ("a8", "b4", 12)
    assert {port.rdma_bandwidth_bytes_per_s for port in a.fabric.ports} == {3200 * GBPS}
    assert {port.rdma_bandwidth_bytes_per_s for port in b.fabric.ports} == {400 * GBPS}
    assert inventory.shared is not None
    assert {port.bandwidth_bytes_per_s for port in inventory.shared.ports} == {25 * GBPS}
    assert len({port.address for port in inventory.shared.ports}) == 12
    gpu = inventory.host("b4").gpus[7]
    assert (known_gpu(str(gpu.name)), gpu.memory_bytes, gpu.nvlinks_up) == ("A100", 80 * 2**30, 12)


@pytest.mark.skipif(not PUBLIC.is_file(), reason="the public clusters are not here")
@pytest.mark.parametrize("public", public_clusters(), ids=lambda public: public["name"])
def test_a_sketch_of_public_machines_equals_their_specification(public: dict[str, Any]) -> None:
    inventory = sketched(PUBLIC_SKETCHES[public["name"]])
    host, fabric, nics = inventory.hosts[0], inventory.clusters[0].fabric, public["nics"]
    assert len(host.gpus) == public["gpus_per_host"]
    assert fabric.kind == next(kind for begin, kind in KINDS.items() if nics["fabric"].startswith(begin))
    cards = [nic for nic in host.nics if nic.kind == fabric.kind][: nics["count"]]
    assert [nic.rate_gbps for nic in cards] == [nics["gbit_per_s"]] * nics["count"]
    rate = fabric.ports[0].rdma_bandwidth_bytes_per_s or fabric.ports[0].bandwidth_bytes_per_s
    assert rate == nics["count"] * nics["gbit_per_s"] * GBPS
    if isinstance(front := public["front_end"], dict):
        others = [nic.rate_gbps for nic in host.nics if nic.kind == "Ethernet"][-front["count"] :]
        assert others == [front["gbit_per_s"]] * front["count"]
    gpu = host.gpus[0]
    if isinstance(nvlink := public["nvlink"], dict):
        one = NVLINK5_BYTES_PER_S if nvlink["generation"] == 5 else NVLINK_BYTES_PER_S
        assert 2 * one * (gpu.nvlinks_up or 0) == nvlink["nvlink_gbytes_per_s"] * 1e9
        assert inside_path(host, gpt_7b()).bandwidth_bytes_per_s == pytest.approx(one * (gpu.nvlinks_up or 0), rel=0.25)
    else:
        assert gpu.nvlinks_up == 0
    if "MiB" in public["gpu"]:
        assert f"({(gpu.memory_bytes or 0) >> 20} MiB)" in public["gpu"]


def test_ports_that_share_a_card_have_its_rate_together() -> None:
    (host, _), (cluster,) = (inventory := from_yaml(fabric="EFA 8x2x400")).hosts, inventory.clusters
    assert (len(host.nics), len({nic.sys_image_guid for nic in host.nics})) == (16, 8)
    assert cluster.fabric.ports[0].rdma_bandwidth_bytes_per_s == 6400 * GBPS
    cards = {"kind": "IB", "cards": 8, "ports_per_card": 2, "gbps": 400, "card_gbps": 400}
    limited = from_yaml(fabric=cards).clusters[0].fabric.ports[0]
    assert (len(limited.hcas), limited.rdma_bandwidth_bytes_per_s) == (16, 3200 * GBPS)
    assert len(from_yaml(fabric="EFA 32x100").hosts[0].nics) == 32


@pytest.mark.parametrize("gbps", [1508, 4000])
def test_a_measured_rate_counts_though_the_cards_have_another(gbps: float) -> None:
    rdma = from_yaml(fabric={"kind": "RoCE", "cards": 8, "gbps": 400, "measured_gbps": gbps})
    assert Networks(rdma, gpt_7b()).rates("a2").fabric_bytes_per_s == gbps * GBPS
    plain = from_yaml(fabric={"kind": "Ethernet", "cards": 8, "gbps": 400, "measured_gbps": gbps})
    assert Networks(plain, gpt_7b()).rates("a2").fabric_bytes_per_s == pytest.approx(gbps * GBPS)
    assert plain.hosts[0].nics[0].rate_gbps == 400


def test_pairs_of_clusters_have_wires_of_their_own() -> None:
    hosts = "2 x 8 A100, IB 8x200, Ethernet 1x100"
    inventory = sketched(f"a: {hosts}; b: {hosts}; c: {hosts}; a-b: 40 at 20 ms, b-c: 10; 60 between")
    networks, payload = Networks(inventory, gpt_7b()), tcp_payload_share(None) * GBPS
    rates = {pair: networks.connection(*pair).host_bytes_per_s("b2", None) for pair in ("ab", "bc", "ac")}
    assert rates == {"ab": 40 * payload, "bc": 10 * payload, "ac": 60 * payload}
    assert networks.latency_s("ab") == 0.02
    assert networks.latency_s("bc") == 0.0


def test_a_wire_makes_no_card_faster_unless_it_was_measured() -> None:
    other = {
        "name": "b",
        "hosts": 1,
        "gpus_per_host": 8,
        "gpu": "H100",
        "fabric": "IB 8x400",
        "ethernet": "Ethernet 10",
    }
    for wire, rate in (({"gbps": 10}, 10 * tcp_payload_share(None)), ({"gbps": 14, "measured": True}, 14)):
        inventory = from_yaml(ethernet="Ethernet 10", top={"clusters": [other], "between": wire})
        assert Networks(inventory, gpt_7b()).rates("a1").shared_bytes_per_s == pytest.approx(rate * GBPS)
    with pytest.raises(HolmesError, match="a host of a has cards of 10 Gbit/s"):
        from_yaml(ethernet="Ethernet 10", top={"clusters": [other], "between": {"gbps": 14}})


def test_a_file_holds_what_text_cannot(tmp_path: Path) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(
        """\
clusters:
  - {name: rack, hosts: 36, gpus_per_host: 4, gpu: GB200, fabric: IB 4x400, nvlink_hosts: 18, memory_gib: 960}
  - {name: old, hosts: 2, gpus_per_host: 8, gpu: A100, nvlinks: 0, pci_generation: 3, fabric: {kind: RoCE, gbps: 100}}
  - {name: odd, hosts: 1, gpus_per_host: 2, gpu: Z9000, gpu_memory_gib: 48, fabric: Ethernet 25}
between: 10
wires:
  - {between: [rack, old], gbps: 5, latency_ms: 30}
trunks:
  - {between: [rack, old], gbps: 20}
  - {cluster: odd, gbps: 8}
""",
        encoding="utf-8",
    )
    inventory = sketched_inventory(read_user_file(Sketch, path))
    assert [len(domain.hosts) for domain in inventory.nvlink_domains] == [18, 18]
    assert inventory.host("rack1").memory_bytes == 960 * 2**30
    assert (inventory.host("old1").gpus[0].nvlinks_up, inventory.host("old1").gpus[0].pci_gen) == (0, 3)
    assert (inventory.host("odd1").gpus[0].name, inventory.host("odd1").gpus[0].memory_bytes) == ("Z9000", 48 * 2**30)
    rates = {trunk.clusters: trunk.bandwidth_bytes_per_s for trunk in inventory.trunks}
    assert rates == {("rack", "old"): 20 * GBPS, ("odd",): 8 * GBPS}


def test_a_gpu_with_more_memory_is_still_that_gpu() -> None:
    gpu = from_yaml(gpu="NVIDIA H100 SXM5 96GB HBM3", gpu_memory_gib=95.6).hosts[0].gpus[0]
    assert (gpu.nvlinks_up, gpu.pci_gen) == (18, 5)
    assert gpu.memory_bytes == int(95.6 * 2**30)


def test_what_the_page_shows_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sketch.md").read_text(encoding="utf-8")
    (machines,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    old = sketched_inventory(parse(Sketch, yaml.safe_load(machines), "docs/sketch.md")).clusters[1].fabric.ports[0]
    assert (len(old.hcas), old.rdma_bandwidth_bytes_per_s) == (4, 252 * GBPS)
    lines = re.findall(r"holmes sketch '(.*?)'", page)
    assert len(lines) == 2
    assert all(sketched(line).sketch for line in lines)


def test_one_rack_of_nvlink_is_planned_as_one() -> None:
    one = from_yaml(gpu="GB200", gpus_per_host=4, nvlink_hosts=2)
    assert Networks(one, gpt_7b()).nvlink_bytes_per_s("a1") == pytest.approx(18 * NVLINK5_BYTES_PER_S, rel=0.25)


def test_hosts_of_two_clusters_never_have_one_name() -> None:
    hosts = "12 x 1 T4, Ethernet 10"
    names = [host.name for host in sketched(f"a: {hosts}; a1: {hosts}; a1-1: {hosts}").hosts]
    assert len(set(names)) == 36
    with pytest.raises(HolmesError, match=r"clusters\.0\.name"):
        from_yaml(name="a1-")


def test_a_plan_is_for_the_sketch() -> None:
    plan = plan_for(sketched("a: 2 x 8 H100, IB 8x400; b: 1 x 4 L40S, Ethernet 2x25; 10 between"), gpt_7b())
    assert plan.sketch is not None
    assert plan.sketch.startswith("a: 2 x 8 H100")


def test_ethernet_cards_limit_an_ethernet_fabric_to_other_clusters_alone() -> None:
    inventory = sketched("a: 2 x 8 H100, Ethernet 8x200, Ethernet 1x100; b: 2 x 8 H100, Ethernet 8x200; 80 between")
    assert inventory.shared is not None
    assert [port.bandwidth_bytes_per_s for port in inventory.shared.ports] == [x * GBPS for x in (100, 100, 1600, 1600)]
    payload = tcp_payload_share(None) * GBPS
    for text in ("", "; a-b: 100"):
        one = "2 x 8 H100, Ethernet 8x200, Ethernet 1x100"
        networks = Networks(sketched(f"a: {one}; b: 2 x 8 H100, Ethernet 8x200{text}"), gpt_7b())
        assert networks.rates("a2").fabric_bytes_per_s == pytest.approx(1600 * payload)
        assert networks.rates("b2").fabric_bytes_per_s == pytest.approx(1600 * payload)
        assert networks.rates("a2").shared_bytes_per_s == pytest.approx(100 * payload)
    faster = Networks(sketched("a: 2 x 8 H100, Ethernet 1x100, Ethernet 8x200"), gpt_7b()).rates("a1")
    assert (faster.fabric_bytes_per_s, faster.shared_bytes_per_s) == (100 * payload, 100 * payload)


def test_efa_hosts_with_an_ethernet_card_have_two_nics() -> None:
    host = "2 x 8 A100-40, EFA 4x100"
    for text, one in ((f"a: {host}, Ethernet 1x50; b: {host}, Ethernet 2x25", False), (f"a: {host}; b: {host}", True)):
        inventory = sketched(f"{text}; 50 between")
        rates = [Networks(inventory, gpt_7b()).rates(name) for name in ("a1", "b1")]
        assert [rate.has_one_nic for rate in rates] == [one, one]
        assert {rate.fabric_bytes_per_s for rate in rates} == {400 * GBPS}
        for each in inventory.hosts:
            assert len({netdev.name for netdev in each.netdevs}) == len(each.netdevs)


def test_a_card_of_pci_express_has_no_nvlinks_of_a_board() -> None:
    for name in ("A100 PCIe 64GB", "NVIDIA A100-PCIE-64GB", "a100 pcie"):
        assert from_yaml(gpu=name, gpu_memory_gib=64).hosts[0].gpus[0].nvlinks_up == 0
    assert from_yaml(gpu="A100 PCIe", nvlinks=12).hosts[0].gpus[0].nvlinks_up == 12


names = st.from_regex(r"[A-Za-z][a-z0-9.-]{0,5}[a-z0-9]", fullmatch=True)
gbps = st.floats(1, 1e6, allow_nan=False).map(lambda rate: float(f"{rate:.6g}"))
slower = st.floats(1e-3, 1, allow_nan=False).map(lambda rate: float(f"{rate:.6g}"))
cards = st.fixed_dictionaries({"cards": st.integers(1, 64), "ports_per_card": st.integers(1, 8), "gbps": gbps})
clusters = st.fixed_dictionaries(
    {
        "hosts": st.integers(1, 9),
        "gpus_per_host": st.integers(1, 72),
        "gpu": st.sampled_from(sorted(GPUS)),
        "fabric": st.builds(lambda kind, keys: {"kind": kind, **keys}, st.sampled_from(sorted(FABRICS)), cards),
    },
    optional={"ethernet": cards},
)
wires = st.fixed_dictionaries({"gbps": slower}, optional={"latency_ms": st.floats(0, 1e4).map(lambda ms: round(ms, 3))})


@given(st.lists(names, min_size=1, max_size=4, unique=True), st.data())
def test_a_sketch_is_read_back_from_its_own_text(labels: list[str], data: st.DataObject) -> None:
    keys: dict[str, Any] = {"clusters": [{"name": label, **data.draw(clusters)} for label in labels]}
    keys["between"] = data.draw(wires)
    if len(labels) > 1:
        keys["wires"] = [{"between": [labels[0], labels[-1]], **data.draw(wires)}]
    sketch = parse(Sketch, keys, "drawn")
    try:
        read = parse_sketch(sketch.text())
    except HolmesError as error:  # `a-b-c` of clusters `a-b` and `c`, `a` and `b-c`
        refusal = error.what
    else:
        refusal = ""
        assert read == sketch
    assert not refusal or "joined by a dash" in refusal


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(HolmesError):
        parse_sketch(text)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 8 x 8 H1OO, IB 8x400", 10, "did you mean H100?"),
        ("a: 8 x 8 A100-60, IB 8x400", 10, "A100 40GB"),
        ("a: 8 x 8 H100, IBB 8x400", 16, "did you mean IB?"),
        ("a: 8 x 8 H100, InfinyBand 8x400", 16, "did you mean InfiniBand?"),
        ("a: 1000000000 x 8 H100, IB 8x400", 4, f"at most {MAX_HOSTS}"),
        (f"a: {'9' * 3000} x 8 H100, IB 8x400", 4, f"at most {MAX_HOSTS}"),
        ("a: 9000 x 8 H100, IB 8x400; b: 9000 x 8 H100, IB 8x400; 5 between", 32, f"at most {MAX_HOSTS}"),
        ("a: 16384 x 72 H100, IB 64x8x400", 4, "GPUs and ports"),
        ("a: 0 x 8 H100, IB 8x400", 4, "at least 1"),
        ("a: 8 x -8 H100, IB 8x400", 8, "at least 1"),
        ("a: 8.5 x 8 H100, IB 8x400", 4, "whole number"),
        ("a: 8 x 8 H100, IB 8x0", 21, "above 0"),
        ("a: 8 x 8 H100, IB 8x400, IB 1x100", 26, "Ethernet"),
        ("a: 8 x 8 H100", 14, "network"),
        ("a: 8 x 8 H100, IB 8x400 b: 1 x 1 T4, IB 1x1", 25, "`;`"),
        ("a: 8 x 8 H100, IB 8x400; a: 1 x 1 T4, IB 1x1; 25 between", 26, "already exists"),
        ("a: 8 x 8 H100, IB 8x400; a-c: 25", 26, "no cluster c"),
        ("a: 8 x 8 H100, IB 8x400; a-a: 25", 26, "two different clusters"),
        ("a: 8 x 8 H100, IB 8x400; a: 25", 26, "dash"),
        ("a: 8 x 8 H100, IB 8x400; 25", 28, "between"),
        ("a: 8 x 8 H100, IB 8x400; 25 at -1 ms between", 32, "at least 0"),
        ("\u0430: 8 x 8 H100, IB 8x400", 1, "letters from a to z"),
        ("a: \uff18 x 8 H100, IB 8x400", 4, "number of hosts"),
        ("", 1, "a cluster's name"),
        ("a" * 5000, 4000, "5000 characters"),
        ("a1: 2 x 8 H100, IB 8x400; a1-: 2 x 8 H100, IB 8x400; 5 between", 29, "`:` after 'a1'"),
        (f"{CARDS}; a-b: 100", 86, "a host of a has cards of 10 Gbit/s"),
        (f"{CARDS}; 10.5 between", 81, "a host of a has cards of 10 Gbit/s"),
        (
            "a: 2 x 8 A100-40, EFA 4x100; b: 2 x 8 H100, IB 8x400; 1000 between",
            55,
            "a host of a has cards of 400",
        ),
        ("a: 2 x 8 T4, Ethernet 4x100, Ethernet 5; b: 2 x 8 T4, IB 1; 6 between", 61, "a host of a has cards of 5"),
    ],
)
def test_text_at_fault_is_refused_with_its_place(text: str, place: int, words: str) -> None:
    with pytest.raises(HolmesError) as refused:
        parse_sketch(text)
    assert f"column {place}: " in refused.value.what
    assert words in refused.value.what
    assert refused.value.exit_code == 2


def test_clusters_that_no_wire_joins_are_named() -> None:
    with pytest.raises(HolmesError, match="no wire joins a and c: add `a-c: 25`"):
        parse_sketch("a: 1 x 1 T4, IB 1x1; b: 1 x 1 T4, IB 1x1; c: 1 x 1 T4, IB 1x1; a-b: 25, b-c: 10")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clusters: [{name: a, host: 8}]", "line 1: clusters.0.host: unknown key"),
        ("clusters: []", "must list at least 1"),
        ("clusters:\n- {name: a, hosts: 1, gpus_per_host: 8, gpu: H1OO, fabric: IB 8x400}", "line 2: clusters.0.gpu"),
        ("clusters:\n- {name: a, hosts: 1, gpus_per_host: 8, gpu: T4, fabric: IB 8x}", "clusters.0.fabric: column 6"),
        (
            "clusters:\n- &a {name: a, hosts: 1, gpus_per_host: 8, gpu: T4, fabric: IB 1}\n- {<<: *a, name: a}",
            "line 3: clusters.1.name",
        ),
        ("clusters:\n- {name: a, hosts: 3, gpus_per_host: 8, gpu: T4, fabric: IB 1, nvlink_hosts: 2}", "divide the 3"),
        (
            "clusters:\n- {name: a, hosts: 3, gpus_per_host: 8, gpu: T4, fabric: IB 1, ethernet: IB 1}",
            "must be Ethernet",
        ),
        ("clusters:\n- {name: a, hosts: 1e9, gpus_per_host: 8, gpu: T4, fabric: IB 1}", "clusters.0.hosts"),
        (
            "clusters:\n- {name: a, hosts: 1, gpus_per_host: 1, gpu: T4, fabric: IB 1}\n"
            "trunks:\n- {cluster: b, gbps: 1}",
            "line 4: trunks.0.cluster: there is no cluster b",
        ),
        *((ONE.format(keys), words) for keys, words in REFUSED_KEYS.items()),
        ("- a", "holds a list"),
    ],
)
def test_a_file_at_fault_is_refused_with_line_and_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HolmesError) as refused:
        read_user_file(Sketch, path)
    assert words in refused.value.what
    assert refused.value.exit_code == 2
