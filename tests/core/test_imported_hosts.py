"""Hosts from what Slurm, Kubernetes and topograph list: names and hints are kept, odd lists are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.hosts.from_kubernetes import hosts_from_kubernetes
from holmes_core.hosts.from_slurm import hosts_from_slurm
from holmes_core.hosts.from_topograph import hosts_from_topograph
from holmes_core.hosts.hosts_file import HostEntry, HostsFile, read_hosts_file
from holmes_core.hosts.imported_hosts import MAX_HOSTS, hosts_yaml
from holmes_core.records.inventory import Hints
from holmes_core.records.plain_data import MAX_FOREIGN_VALUES

DATA = Path(__file__).parent.parent / "data" / "hosts"
OLD, NEW = "network.topology.nvidia.com", "fabric.topograph.run"
GENERATIONS = {
    "0.1": (f"{OLD}/block", f"{OLD}/spine", f"{OLD}/datacenter"),
    "0.5": (f"{OLD}/leaf", f"{OLD}/spine", f"{OLD}/core"),
    "1.0": tuple(f"{NEW}/tier-{tier}" for tier in range(3)),
    "Amazon": tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (3, 2, 1)),
    "Google": tuple(f"cloud.google.com/gce-topology-{level}" for level in ("host", "subblock", "block")),
    "Oracle": ("oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id"),
}


def node(name: str = "a", **status: Any) -> dict[str, Any]:
    labels, spec = status.pop("labels", {}), status.pop("spec", {})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def nodes(*items: dict[str, Any]) -> str:
    return json.dumps({"kind": "List", "items": items})


def graph(*instances: dict[str, Any]) -> str:
    return json.dumps({"instances": instances})


def only(hosts: HostsFile) -> HostEntry:
    (entry,) = hosts.hosts
    return entry


def read_back(tmp_path: Path, hosts: HostsFile) -> HostsFile:
    (tmp_path / "hosts.yaml").write_text(hosts_yaml(hosts, "test"), encoding="utf-8")
    return read_hosts_file(tmp_path / "hosts.yaml")


@pytest.mark.parametrize("keys", GENERATIONS.values(), ids=GENERATIONS)
def test_every_generation_of_labels_gives_switches_from_the_nearest_on(keys: tuple[str, ...]) -> None:
    labels = {key: f"switch-{level}" for level, key in enumerate(keys)}
    found = tuple(labels.values())
    assert only(hosts_from_topograph(graph({"id": "a", "labels": labels}), "x").hosts).hints.network == found
    assert only(hosts_from_kubernetes(nodes(node(labels=labels)), "x").hosts).hints.network == found


def test_a_fleet_whose_labels_are_of_two_generations_has_the_switches_of_both() -> None:
    text = nodes(node("a", labels={f"{OLD}/leaf": "s1"}), node("b", labels={f"{NEW}/tier-0": "s1"}))
    assert [each.hints.network for each in hosts_from_kubernetes(text, "x").hosts.hosts] == [("s1",), ("s1",)]


def test_nvlink_domains_are_all_by_the_label_that_most_have() -> None:
    accelerator, clique = {f"{OLD}/accelerator": "rack-1"}, {"nvidia.com/gpu.clique": "uuid.1"}
    text = nodes(node("a", labels=accelerator), node("b", labels={**accelerator, **clique}), node("c", labels=clique))
    found = hosts_from_kubernetes(text, "x").hosts.hosts
    assert [each.hints.nvlink for each in found] == [None, "uuid.1", "uuid.1"]


def test_the_older_attribute_of_topograph_is_an_nvlink_domain() -> None:
    text = graph({"id": "I21", "type": "H100", "network_layers": ["leaf-a"], "attributes": {"nvlink": "nvl-1"}})
    assert only(hosts_from_topograph(text, "x").hosts).hints == Hints(network=("leaf-a",), nvlink="nvl-1")


def test_layers_come_before_labels() -> None:
    text = graph({"id": "a", "network_layers": ["leaf", "spine"], "labels": {f"{OLD}/leaf": "other"}})
    assert only(hosts_from_topograph(text, "x").hosts).hints.network == ("leaf", "spine")


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
switches = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
hints = st.builds(Hints, network=st.lists(switches, max_size=4).map(tuple), nvlink=st.none() | switches)


@given(fleet=st.dictionaries(names, hints, min_size=1, max_size=8), generation=st.sampled_from(["graph", "0.5", "1.0"]))
def test_topograph_to_hosts_yaml_keeps_hosts_and_hints(
    tmp_path_factory: pytest.TempPathFactory, fleet: dict[str, Hints], generation: str
) -> None:
    instances = []
    for name, hint in fleet.items():
        if generation == "graph":
            place: dict[str, Any] = {"network_layers": hint.network, "labels": {}}
        else:
            network = tuple(dict.fromkeys(hint.network))[:3]
            fleet[name] = hint.model_copy(update={"network": network})
            place = {"labels": dict(zip(GENERATIONS[generation], network, strict=False))}
        if hint.nvlink:
            place["labels"]["accelerator.topograph.run/domain"] = hint.nvlink
        instances.append({"id": name, **place})
    folder = tmp_path_factory.mktemp("hosts")
    back = read_back(folder, hosts_from_topograph(graph(*instances), "x").hosts)
    assert {entry.name: entry.hints for entry in back.hosts} == fleet


def test_nodes_that_are_cordoned_or_not_ready_or_alone_without_gpus_are_left_out_by_name() -> None:
    gpus, ready = {"nvidia.com/gpu": "8"}, [{"type": "Ready", "status": "True"}]
    text = nodes(
        node("fit", capacity=gpus, conditions=ready, addresses=[{"type": "InternalIP", "address": "10.0.0.1"}]),
        node("cordoned", capacity=gpus, spec={"unschedulable": True}),
        node("away", capacity=gpus, conditions=[{"type": "Ready", "status": "Unknown"}]),
        node("plain", capacity={"cpu": "8"}),
    )
    found = hosts_from_kubernetes(text, "x")
    assert only(found.hosts) == HostEntry(name="fit", address="10.0.0.1")
    assert found.left_out == ("cordoned: cordoned", "away: not ready", "plain: no GPUs")


def test_nodes_that_are_left_out_alike_are_one_line() -> None:
    text = "NodeName=a\n" + "".join(f"NodeName=n{number} State=DOWN*\n" for number in range(12))
    (line,) = hosts_from_slurm(text, "x").left_out
    assert line == "n0, n1, n2, n3, n4, n5, n6, n7 and 4 more: DOWN*"


def test_where_no_node_is_known_to_have_gpus_all_are_taken() -> None:
    found = hosts_from_slurm("NodeName=a Gres=(null) State=IDLE\nNodeName=b Gres=(null) State=IDLE\n", "x")
    assert [entry.name for entry in found.hosts.hosts] == ["a", "b"]


@pytest.mark.parametrize(
    "state",
    ["DOWN*", "IDLE+DRAIN", "MIXED+DRAIN", "IDLE*", "DOWN+NOT_RESPONDING", "IDLE+CLOUD+POWERED_DOWN", "FUTURE"],
)
def test_a_node_of_slurm_that_cannot_run_now_is_left_out_with_its_state(state: str) -> None:
    found = hosts_from_slurm(f"NodeName=a State=IDLE\nNodeName=b State={state} Reason=State=IDLE\n", "x")
    assert found.left_out == (f"b: {state}",)


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED", "COMPLETING", "IDLE+RESERVED", "IDLE+CLOUD"])
def test_a_node_of_slurm_at_work_is_taken(state: str) -> None:
    assert hosts_from_slurm(f"NodeName=a State={state}\n", "x").left_out == ()


def test_free_text_of_slurm_says_nothing() -> None:
    line = "NodeName=a NodeAddr=10.0.0.1 State=IDLE Reason=NodeAddr=6.6.6.6 State=DOWN Gres=gpu:8 NodeName=b [me@now]\n"
    assert only(hosts_from_slurm(line, "x").hosts) == HostEntry(name="a", address="10.0.0.1")


@pytest.mark.parametrize(
    ("features", "fabric"),
    [("h100,NDR", "InfiniBand"), ("roce", "RoCE"), ("ib,roce", None), ("rack3", None), ("(null)", None)],
)
def test_features_that_name_one_kind_of_fabric_are_a_hint(features: str, fabric: str | None) -> None:
    assert only(hosts_from_slurm(f"NodeName=a ActiveFeatures={features}\n", "x").hosts).hints.fabric == fabric


def test_real_output_of_slurm_with_switches_is_read_in_both_its_forms() -> None:
    expected = read_hosts_file(DATA / "slurm-22.05.8.yaml")
    for form in ("lines", "blocks"):
        text = (DATA / f"slurm-22.05.8-{form}.txt").read_text(encoding="utf-8")
        assert hosts_from_slurm(text, "x").hosts == expected


def test_nodes_as_kubectl_prints_them_are_read() -> None:
    found = hosts_from_kubernetes((DATA / "kubectl-1.32.4.json").read_text(encoding="utf-8"), "x")
    assert found.hosts == read_hosts_file(DATA / "kubectl-1.32.4.yaml")
    assert found.left_out == ("gpu-b2: cordoned", "gpu-b3: not ready", "head: no GPUs")


KEYS = ["kind", "items", "metadata", "name", "labels", "spec", "status", "addresses", "type", "address", "capacity"]
KEYS += ["instances", "id", "network_layers", "attributes", "nvlink", "conditions", f"{OLD}/leaf", "unschedulable"]
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["Node", "List", "a", "b"])
any_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
)
any_nodes = st.lists(st.fixed_dictionaries({"metadata": any_json, "status": any_json, "id": any_json}), max_size=3)
FIELDS = ["NodeName=a", "NodeName=b", "SwitchName=s", "SwitchName=t", "Switches=s,t", "Nodes=a,b", "Nodes=[", "State="]
FIELDS += [
    "State=DOWN*",
    "Gres=gpu",
    "NodeAddr=::1",
    "NodeAddr=-",
    "ActiveFeatures=ib",
    "\n",
    "\n ",
    "=",
    "\x00",
    "\ud800",
]


@given(any_json, any_nodes)
def test_any_json_is_hosts_or_refused(data: Any, listed: list[Any]) -> None:
    for read in (hosts_from_kubernetes, hosts_from_topograph):
        for text in (json.dumps(data), json.dumps({"kind": "List", "items": listed, "instances": listed})):
            hosts_or_refused(read, text)


@given(st.lists(st.sampled_from(FIELDS) | st.text(max_size=4), max_size=30))
def test_any_text_is_hosts_or_refused(words: list[str]) -> None:
    hosts_or_refused(hosts_from_slurm, "NodeName=c " + " ".join(words))


def hosts_or_refused(read: Any, text: str) -> None:
    refused = None
    try:
        hosts_yaml(read(text, "x").hosts, "x").encode()
    except HolmesError as error:
        refused = error
    assert refused is None or refused.exit_code == WRONG_USAGE


SCOPES = ("$(touch${IFS}PWNED)", ";id", "a\n  ProxyCommand x", "\x1b[2J", "eth0")


@pytest.mark.parametrize("scope", SCOPES)
def test_an_address_with_a_scope_is_refused_by_node_and_value(scope: str) -> None:
    address = f"fe80::1%{scope}"
    listed = nodes(node("n1"), node("n2", addresses=[{"type": "InternalIP", "address": address}]))
    with pytest.raises(HolmesError, match="x: n2: ") as caught:
        hosts_from_kubernetes(listed, "x")
    assert repr(address) in caught.value.what
    assert caught.value.exit_code == WRONG_USAGE
    with pytest.raises(HolmesError, match="x: n2: ") as caught:
        hosts_from_slurm(f"NodeName=n1\nNodeName=n2 NodeAddr={address} State=IDLE\n", "x")
    assert repr(address.split()[0]) in caught.value.what


DEEP = '{"instances": ' + "[" * 200 + "]" * 200 + "}"


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (hosts_from_slurm, "", "x: names no node"),
        (hosts_from_slurm, "slurm_load_node error: Unable to contact slurm controller\n", "x: names no node"),
        (hosts_from_slurm, "NodeName=a\nNodeName=a\n", "x: a is listed twice"),
        (hosts_from_slurm, "NodeName=-oProxyCommand=id\n", "'-oProxyCommand=id' is not a valid host name"),
        (hosts_from_slurm, "NodeName=a NodeAddr=$(id)\n", "a: '$(id)' is not an address"),
        (hosts_from_slurm, "NodeName=a State=DOWN*\n", "no machine that can be used: a: DOWN*"),
        (hosts_from_slurm, "NodeName=a\nSwitchName=s Nodes=a[\n", "x: host pattern"),
        (hosts_from_slurm, "NodeName=a\nSwitchName=s Nodes=n[1-99999]\nSwitchName=t Nodes=m[1-99999]\n", "more than"),
        (hosts_from_slurm, "NodeName=a\nSwitchName=s Nodes=a\nSwitchName=s Switches=s\n", "switch s is above itself"),
        (hosts_from_kubernetes, "", "x: line 1, column 1: not JSON"),
        (hosts_from_kubernetes, "[]", "x: holds a list, not keys and values"),
        (hosts_from_kubernetes, '{"kind": "List"}', "x: items: missing"),
        (hosts_from_kubernetes, nodes({**node(), "kind": "Pod"}), "items.0.kind"),
        (hosts_from_kubernetes, nodes(node("a"), node("a")), "x: a is listed twice"),
        (hosts_from_kubernetes, nodes(), "x: no machine that can be used: it lists none"),
        (hosts_from_kubernetes, nodes(node("../../etc")), "'../../etc' is not a valid host name"),
        (hosts_from_kubernetes, nodes(node(labels={f"{OLD}/leaf": "a b"})), "hosts.0.hints.network.0"),
        (hosts_from_kubernetes, nodes(node(labels={f"{OLD}/leaf": 3})), "items.0.metadata.labels"),
        (hosts_from_topograph, '{"instances": {}}', "x: instances"),
        (hosts_from_topograph, graph({"network_layers": []}), "x: instances.0.id: missing"),
        (hosts_from_topograph, graph({"id": "a", "network_layers": ["s"] * 11}), "hosts.0.hints.network"),
        (hosts_from_topograph, DEEP, "x: nested more than"),
        (hosts_from_topograph, "," * (MAX_FOREIGN_VALUES + 1), "x: holds more than"),
    ],
)
def test_what_is_no_list_of_machines_is_refused_in_one_line(read: Any, text: str, said: str) -> None:
    with pytest.raises(HolmesError) as error:
        read(text, "x")
    assert said in error.value.what
    assert error.value.exit_code == WRONG_USAGE
    assert "\n" not in error.value.what


def test_more_hosts_than_hosts_yaml_holds_are_refused() -> None:
    text = "".join(f"NodeName=n{number}\n" for number in range(MAX_HOSTS + 1))
    with pytest.raises(HolmesError, match=f"{MAX_HOSTS + 1} hosts; hosts.yaml holds {MAX_HOSTS}"):
        hosts_from_slurm(text, "x")


@pytest.mark.slow
def test_as_many_hosts_as_are_imported_are_read_again(tmp_path: Path) -> None:
    full = {"network": [f"{'s' * 20}-{level}" for level in range(10)], "nvlink": "n" * 20, "fabric": "InfiniBand"}
    entries = [{"name": f"n{n}", "address": f"fd00::{n:x}:1:2:3", "hints": full} for n in range(MAX_HOSTS)]
    hosts = HostsFile.model_validate({"hosts": entries})
    assert read_back(tmp_path, hosts) == hosts


def test_the_header_of_hosts_yaml_holds_no_line_of_the_source() -> None:
    text = hosts_yaml(HostsFile.model_validate({"hosts": ["a"]}), "evil\nhosts: [b]\n# ")
    assert "\nhosts: [b]" not in text
    assert text.endswith("\nhosts: [a]\n")
