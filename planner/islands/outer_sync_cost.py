"""The outer syncs of a round: bytes between clusters, and seconds of one fragment.

Every island sends its packed pseudo-gradient to every other island, and all compute the same mean. Four islands or more
reduce it in chunks (`holmes_runtime/config/islands/reduction.py`). A host sends the pieces of its own ranks, each with
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
# A request to the rendezvous without its network time: agent, channel and controller. Measured: 10 ms.
QUESTION_S = 0.012
# Share of a wire's one-way rate that each direction gets if both are full, since acknowledgements wait in the queue:
# 0.65 to 0.97, on average 0.8, for 0.8 and 1.2 MB both ways at 2 Mbit/s between two network namespaces.
BOTH_WAYS = 0.8


@dataclass(frozen=True)
class OuterSyncCost:
    """The seconds of a round's exchanges, and the bytes that each island sends in them."""

    busy_s: float  # all bytes on the wire, and their packing
    rendezvous_s: float  # of each fragment, with its latency
    sent_bytes: tuple[int, ...]

    def fragment_s(self, fragments: int) -> float:
        """Return the seconds of one exchange if the parameters are in that many fragments."""
        return self.busy_s / fragments + self.rendezvous_s


@dataclass(frozen=True)
class _Sender:
    """The bytes that one host sends to each other island in a round."""

    host: str
    cluster: str
    each_bytes: int


def price_exchange(networks: Networks, job: Job, codec: OuterCodec, plans: Sequence[Plan]) -> OuterSyncCost:
    """Return the cost of outer syncs between the islands of `plans`.

    Each fragment takes a rendezvous, packing, and one message, or two in a row if it is reduced in chunks.

    Raises:
        HolmesError: The rate of a host's NIC is not known.
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
    """Return the seconds that ranks need to agree on an outer sync and its end, by one request after another.

    Rank 0 of the last island sends 3 requests, and 2 for each other island. The other ranks need 2 to learn of it, and
    4 end it (`holmes_runtime/outer/rendezvous.py`). Assumption: the controller is as far from hosts as clusters are
    from one another.
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
    """Yield the seconds of each host's NIC, which sends to all other islands, to each at its own rate."""
    for one in islands:
        others = [{sender.cluster for sender in other} for other in islands if other is not one]
        for sender in one:
            rates = [_rate(networks, sender, clusters) for clusters in others]
            yield max(sender.each_bytes * len(others) / max(rates), sender.each_bytes / min(rates))


def _rate(networks: Networks, sender: _Sender, clusters: Iterable[str]) -> float:
    """Return the bytes/s of a host to the cluster with the slowest connection among `clusters`."""
    port = networks.shared_port(sender.host).bandwidth_bytes_per_s
    rates = [networks.connection(sender.cluster, name).host_bytes_per_s(sender.host, port) for name in clusters]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        return min(require_bandwidth(networks.shared_route(sender.host), [sender.host]))
    return min(known)


def _trunks_s(networks: Networks, islands: Sequence[Sequence[_Sender]]) -> Iterable[float]:
    """Return the seconds of each trunk and uplink. An island's bytes go to its clusters by their parameters."""
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
    """Return a pair of hosts for each cluster of one island and each cluster of the other."""
    firsts = [{sender.cluster: sender for sender in island}.values() for island in (one, other)]
    return ((a, b) for a in firsts[0] for b in firsts[1])


def _packing_s(job: Job, codec: OuterCodec, plan: Plan, num_islands: int) -> float:
    """Return the seconds of the busiest rank, which packs its pseudo-gradient and unpacks one from every island.

    In chunks, it unpacks n - 1 pieces of its own chunk, and then the means of all chunks.
    """
    values = max(rank_share(plan, rank) for rank in plan.ranks)
    unpacked = 3 - 2 / num_islands if is_chunked(num_islands) else num_islands
    return pack_s(job.device, codec, values) + unpacked * unpack_s(job.device, codec, values)
