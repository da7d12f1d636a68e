"""A plan that encrypts between clusters: what nodes are told, and what keeps it from starting."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.link import Security
from holmes_core.records.plan import TUNNEL_NETDEV
from holmes_runtime.config.messages import NodeInterface, Ready, SocketAddress
from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault
from launcher.emit.emit import FORMATS, emit
from launcher.nodes.node_checks import check_facts
from launcher.nodes.preflight import Fault, Preflight, remedy_of
from launcher.nodes.reach_checks import rounds_of, tries_of
from launcher.prepare.bundle import NODE_CONFIG_FILE
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, healthy_answers
from tests.planner.fleets import bed_job, cpu_inventory, plan_for

WIREGUARD = {"security": Security(between_clusters="wireguard")}
PLAN = plan_for(cpu_inventory((2, 2)).model_copy(update=WIREGUARD), bed_job())
NOTHING = UserVariables({}, {})
LACKS = TunnelFault("`wg` is not installed", "install the package wireguard-tools")


def answers(*tunnels: TunnelEnd | TunnelFault | None) -> dict[int, Ready]:
    """Of healthy nodes with those tunnels; where there is one, it is an interface."""
    given = {}
    for rank, ready in healthy_answers(PLAN).items():
        facts = ready.facts._replace(local_addresses=(str(PLAN.nodes[rank].tunnel_endpoint),))
        if isinstance(tunnels[rank], TunnelEnd):
            made = {TUNNEL_NETDEV: NodeInterface(up=True, address=PLAN.nodes[rank].shared_address)}
            facts = facts._replace(interfaces={**facts.interfaces, **made})
        given[rank] = ready._replace(facts=facts, tunnel=tunnels[rank])
    return given


def test_nodes_are_told_of_the_tunnel_and_where_the_others_take_its_packets() -> None:
    for node, bundle in zip(PLAN.nodes, prepare(PLAN, Attempt("run"), NOTHING), strict=True):
        config = NodeConfig.from_json(bundle.files[NODE_CONFIG_FILE])
        assert config.tunnel == TunnelConfig(TUNNEL_NETDEV, tuple(str(each.tunnel_endpoint) for each in PLAN.nodes))
        assert config.node_addresses == ("198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.0.4")
        assert config.addresses == {"eth1": None, TUNNEL_NETDEV: node.shared_address}


def test_nodes_of_another_plan_are_told_of_none() -> None:
    for bundle in prepare(cpu_plan(), Attempt("run"), NOTHING):
        assert NodeConfig.from_json(bundle.files[NODE_CONFIG_FILE]).tunnel is None


def test_nodes_with_their_ends_of_the_tunnel_have_no_fault() -> None:
    ends = [TunnelEnd(f"KEY{rank}", 51820) for rank in range(4)]
    assert list(check_facts(PLAN, Attempt("run"), None, answers(*ends))) == []


@pytest.mark.parametrize(
    ("said", "evidence", "remedy"),
    [
        (LACKS, *LACKS),
        (None, "the plan encrypts, and the node has no holmes-wg with 198.18.0.1", "open UDP port 51820"),
    ],
)
def test_a_node_without_its_end_refuses_and_cannot_be_forced(
    said: TunnelFault | None, evidence: str, remedy: str
) -> None:
    ends = [TunnelEnd("KEY", 51820)] * 3
    (fault,) = check_facts(PLAN, Attempt("run"), None, answers(said, *ends))
    assert (fault.check, fault.host, fault.evidence) == ("encryption", PLAN.nodes[0].host, evidence)
    assert remedy in remedy_of(fault)
    assert not Preflight((fault,), frozenset({"encryption"})).passed
    assert Preflight((Fault("disk", "a1", ""),), frozenset({"disk"})).passed


@pytest.mark.parametrize("form", FORMATS)
def test_what_needs_agents_is_not_emitted(form: str) -> None:
    with pytest.raises(HolmesError, match=f"--to {form}: hosts.yaml asks for encryption between clusters"):
        emit(PLAN, form, NOTHING)


def test_two_ends_of_a_tunnel_never_begin_at_once() -> None:
    ready = {
        rank: answer._replace(listeners={TUNNEL_NETDEV: SocketAddress(PLAN.nodes[rank].shared_address, 4000 + rank)})
        for rank, answer in answers(*[TunnelEnd("key", 51820)] * 4).items()
    }
    tries = tries_of(PLAN, ready, 29500)
    assert {(each.there, each.here) for each in tries} & {(each.here, each.there) for each in tries}
    rounds = rounds_of(PLAN, tries)
    for together in rounds:
        pairs = {(each.here, each.there) for each in together if each.here != each.there}
        assert pairs
        assert not pairs & {(there, here) for here, there in pairs}
    assert sorted(each for together in rounds for each in together) == sorted(tries)
    assert rounds_of(cpu_plan(), tries) == [tries]
