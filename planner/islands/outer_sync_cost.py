"""The outer syncs of a round: bytes between clusters, and seconds of one fragment.

Every island sends each other one its pseudo-gradient, packed, and all compute the same mean; from four islands on they
reduce it in chunks (`holmes_runtime/config/islands/reduction.py`). A host sends the pieces of its own ranks; each has
1/dp of its shard's parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, PlanRank
from holmes_runtime.config.codec import OUTER_BLOCK, pack_s, packed_bytes, unpack_s
from holmes_runtime.config.islands.reduction import is_chunked, share_to_each
from holmes_runtime.config.run_settings import OuterCodec
from planner.cost.engines import expert_shards
from planner.cost.trained import stage_of
from planner.problem.networks import Networks, SharedWire, require_bandwidth

VALUE_BYTES = 4  # pseudo-gradients are fp32, like masters
# A request to the rendezvous, without its network time: the agent, its channel, the controller. 10 ms were seen.
QUESTION_S = 0.012
# Share of a wire's one-way rate that a direction gets while the other is full too: acknowledgements wait in its
# queue. Of 0.8 and 1.2 MB both ways at 2 Mbit/s between two network namespaces 0.65 to 0.97 were seen, 0.8 in the mean.
BOTH_WAYS = 0.8


@dataclass(frozen=True)
class OuterSyncCost:
    """The seconds that exchanges of a round take, and the bytes that each island sends in it."""

    busy_s: float  # all bytes on the wire, and their packing
    rendezvous_s: float  # of each fragment, with its latency
    sent_bytes: tuple[int, ...]

    def fragment_s(self, fragments: int) -> float:
        """Return the seconds of the exchange of one of so many fragments."""
        return self.busy_s / fragments + self.rendezvous_s


@dataclass(frozen=True)
class _Sender:
    """The bytes that one host sends each other island in a round."""

    host: str
    cluster: str
    each_bytes: int


def price_exchange(networks: Networks, job: Job, codec: OuterCodec, plans: Sequence[Plan]) -> OuterSyncCost:
    """Return the outer syncs of the islands of `plans`; each fragment takes a rendezvous, its packing, and a message,
    or two one after the other where it is reduced in chunks.

    Raises:
        HolmesError: the rate of a host's NIC is not known.
    """
    islands = [_senders(codec, plan, share_to_each(len(plans))) for plan in plans]
    busy_s = max([*_nics_s(networks, islands), *_trunks_s(networks, islands)]) / BOTH_WAYS
    latency_s = max(
        networks.connection(a.cluster, b.cluster).latency_s
        for one, other in permutations(islands, 2)
        for a, b in _first_of_clusters(one, other)
    )
    packing_s = max(_packing_s(job, codec, plan, len(plans)) for plan in plans)
    sent = ((len(plans) - 1) * sum(sender.each_bytes for sender in island) for island in islands)
    messages_s = latency_s * (2 if is_chunked(len(plans)) else 1)
    return OuterSyncCost(busy_s + packing_s, messages_s + meeting_s(len(plans), latency_s), tuple(sent))


def meeting_s(num_islands: int, latency_s: float) -> float:
    """Return the seconds in which ranks agree on an outer sync and on its end, one request to the controller at a time.

    Rank 0 of the last island sends 3 and 2 for each other island, the other ranks learn of it in 2, and 4 end it
    (`holmes_runtime/outer/rendezvous.py`). Assumption: the controller is as far from hosts as clusters are apart.
    """
    questions = 3 + 2 * (num_islands - 1) + 2 + 4
    return questions * (QUESTION_S + 2 * latency_s)


def _senders(codec: OuterCodec, plan: Plan, share: float) -> list[_Sender]:
    held, cluster_of = Counter[str](), dict[str, str]()
    for rank in plan.ranks:
        held[rank.host] += rank_share(plan, rank)
        cluster_of[rank.host] = rank.cluster
    return [
        _Sender(host, cluster_of[host], round(share * packed_bytes(codec, values, VALUE_BYTES, OUTER_BLOCK)))
        for host, values in held.items()
    ]


def rank_share(plan: Plan, rank: PlanRank) -> int:
    """Return the parameters whose masters a rank holds: 1/dp of its shard's trained ones."""
    layers = sum(stage.num_layers for stage in plan.stages if stage.index % plan.pp == rank.pp_rank)
    ends = rank.pp_rank == 0, rank.pp_rank == (len(plan.stages) - 1) % plan.pp
    shards = plan.tp, expert_shards(plan.job, plan.tp)
    return -(-stage_of(plan.job.model, plan.job.trainable, layers, ends, *shards).trained // plan.dp)


def _nics_s(networks: Networks, islands: Sequence[Sequence[_Sender]]) -> Iterator[float]:
    """Yield the seconds of each host's NIC, which sends all other islands their part, each by a way of its own."""
    for one in islands:
        others = [{sender.cluster for sender in other} for other in islands if other is not one]
        for sender in one:
            rates = [_rate(networks, sender, clusters) for clusters in others]
            yield max(sender.each_bytes * len(others) / max(rates), sender.each_bytes / min(rates))


def _rate(networks: Networks, sender: _Sender, clusters: Iterable[str]) -> float:
    """Return the bytes/s that a host gets to the worst connected of `clusters`."""
    port = networks.shared_port(sender.host).bandwidth_bytes_per_s
    rates = [networks.connection(sender.cluster, name).host_bytes_per_s(sender.host, port) for name in clusters]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        return min(require_bandwidth(networks.shared_route(sender.host), [sender.host]))
    return min(known)


def _trunks_s(networks: Networks, islands: Sequence[Sequence[_Sender]]) -> Iterable[float]:
    """Return the seconds of each trunk and uplink; clusters of an island get its bytes by their share of parameters."""
    busy_s: dict[SharedWire, float] = {}
    for one, other in permutations(islands, 2):
        whole = sum(receiver.each_bytes for receiver in other)
        for a, b in _first_of_clusters(one, other):
            sent = sum(sender.each_bytes for sender in one if sender.cluster == a.cluster)
            there = sum(receiver.each_bytes for receiver in other if receiver.cluster == b.cluster)
            for wire, rate in networks.shared_wires(a.cluster, b.cluster).items():
                busy_s[wire] = busy_s.get(wire, 0.0) + sent * there / whole / rate
    return busy_s.values()


def _first_of_clusters(one: Sequence[_Sender], other: Sequence[_Sender]) -> Iterator[tuple[_Sender, _Sender]]:
    """For each cluster of one island and of the other, a host of both."""
    firsts = [{sender.cluster: sender for sender in island}.values() for island in (one, other)]
    return ((a, b) for a in firsts[0] for b in firsts[1])


def _packing_s(job: Job, codec: OuterCodec, plan: Plan, num_islands: int) -> float:
    """Return the busiest rank's seconds: it packs its pseudo-gradient and unpacks one of each island, its own too.

    In chunks it unpacks n - 1 chunks of its own and of the others each, and the means of all.
    """
    values = max(rank_share(plan, rank) for rank in plan.ranks)
    unpacked = 3 - 2 / num_islands if is_chunked(num_islands) else num_islands
    return pack_s(job.device, codec, values) + unpacked * unpack_s(job.device, codec, values)
