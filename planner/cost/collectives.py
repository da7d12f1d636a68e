"""Compute the seconds of messages and collectives on links, in pure functions that name their sources.

A `Path` is one group's share of the network between its members: bytes/s in one direction, and the seconds of one hop.
Sizes are the bytes of the whole value on one member, before a reduce-scatter or after an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

from holmes_runtime.config.codec import Device
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import Recompute
from planner.cost.counts import Execution, key_value_bytes
from planner.cost.trained import backward_share

ETHERNET_MTU_BYTES = 1500
# The share of a link that an exchange of more than two ranks gets on Gloo, where several ranks send to one at once.
# Measured on sockets between network namespaces at 50 to 200 Mbit/s: 0.8 to 0.95, 2026-11-22. NCCL's rings get it all.
INCAST_SHARE = 0.9
ALL_TO_ALL_SHARE = 0.7  # the share of the rate between hosts that an all-to-all by NCCL gets. GUESS
# The same share for DeepEP, which sends a token only once to each host. Its README lists 58 and 51 GB/s on NICs of
# 50 GB/s in groups of 32 and 64, with 3.6 hosts per token, 2.7 and 3.15 of them remote.
SENT_ONCE_SHARE = 0.88
SMALLEST_MTU_BYTES = 68  # the least that IPv4 allows
TCP_HEADERS_BYTES = 20 + 20 + 12
ETHERNET_FRAMING_BYTES = 14 + 4 + 8 + 12
TUNNEL_HEADERS_BYTES = 20 + 8 + 32
TUNNEL_MTU_BYTES = 80  # a tunnel's MTU is this much smaller than its path's
SMALLEST_TUNNELLED_MTU_BYTES = SMALLEST_MTU_BYTES + TUNNEL_MTU_BYTES


@dataclass(frozen=True)
class Path:
    """A link as one group sees it. `latency_s` is 0 if it was not measured."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a forward and a backward."""

    forward_s: float
    backward_s: float

    @property
    def both_s(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward_s + self.backward_s

    def no_less_than(self, least: PassTimes) -> PassTimes:
        """Return the longer of the two times for each pass."""
        return PassTimes(max(self.forward_s, least.forward_s), max(self.backward_s, least.backward_s))

    def with_backwards(self, share: float) -> PassTimes:
        """Return the mean times if only a `share` of the layers has a backward."""
        return PassTimes(self.forward_s, share * self.backward_s)

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(self.forward_s + other.forward_s, self.backward_s + other.backward_s)


def tcp_payload_share(mtu: int | None) -> float:
    """Return the share of an Ethernet link's rate that TCP's payload gets: (mtu - 52) / (mtu + 38); 0.941 at 1500.

    A frame of `mtu` bytes (1500 if unknown) holds an IPv4 header (20) and a TCP header with timestamps (32). Around it
    are the Ethernet header (14), check sequence (4), preamble (8) and gap (12). Sources: RFC 791, RFC 9293, RFC 7323;
    IEEE 802.3. The overhead of RDMA, under 2 % with packets of 4096 bytes, is ignored.
    """
    size = max(mtu, SMALLEST_MTU_BYTES) if mtu is not None else ETHERNET_MTU_BYTES
    return (size - TCP_HEADERS_BYTES) / (size + ETHERNET_FRAMING_BYTES)


def tunnel_payload_share(mtu: int | None) -> float:
    """Return the share of a link's rate that TCP's payload in a WireGuard tunnel gets: 0.901 at an MTU of 1500 bytes.

    Packets inside the tunnel are 80 bytes smaller, as with `wg-quick`. Around each are an IPv4 header (20), a UDP
    header (8), and WireGuard's header and tag (32). Source: Donenfeld, WireGuard, NDSS 2017, 5.4.6.
    """
    size = max(mtu, SMALLEST_TUNNELLED_MTU_BYTES) if mtu is not None else ETHERNET_MTU_BYTES
    inner = size - TUNNEL_MTU_BYTES
    return (inner - TCP_HEADERS_BYTES) / (inner + TUNNEL_HEADERS_BYTES + ETHERNET_FRAMING_BYTES)


def shard_exchange_bytes(size_bytes: float, num_ranks: int) -> float:
    """Return the bytes each member sends, and receives, in one reduce-scatter or one all-gather: (n-1)/n size.

    A ring moves as many bytes as an all-to-all with a local sum. Source: Patarasuk and Yuan, Bandwidth optimal
    all-reduce algorithms, 2009.

    Raises:
        ValueError: `num_ranks` is less than 1.
    """
    if num_ranks < 1:
        raise ValueError(f"a collective needs a rank, got {num_ranks}")
    return (num_ranks - 1) * size_bytes / num_ranks


def shard_exchange_s(size_bytes: float, num_ranks: int, path: Path) -> float:
    """Return a ring reduce-scatter's or all-gather's seconds: (n-1)/n size / bandwidth + (n-1) latency; 0 for n = 1."""
    hops_s = (num_ranks - 1) * path.latency_s
    return shard_exchange_bytes(size_bytes, num_ranks) / path.bandwidth_bytes_per_s + hops_s


def times_as_long(sizes: Sequence[float]) -> dict[float, float]:
    """Return, by size, the slowdown of exchanges that all begin at once on a shared link: 1 to their number.

    Unfinished exchanges divide the link evenly, and smaller ones finish first. By the time an exchange of b bytes is
    done, every other one has sent min(its bytes, b). The slowdown is the sum of these divided by b.
    """
    return {size: sum(min(other, size) for other in sizes) / size for size in set(sizes)}


class Hops(NamedTuple):
    """The latencies in a bucket's exchange: `reduce` and `gather` occupy its network, `late` follow its last byte."""

    reduce: int
    gather: int
    late: int


def exchange_hops(num_ranks: int, device: Device) -> Hops:
    """Return the hops of a reduce-scatter and an all-gather.

    NCCL's ring takes (n-1) hops before the next bucket's ring begins. Gloo's reduce-scatter is an all-to-all and
    takes one hop, as does its all-gather between two ranks; many of these are under way at once.
    """
    if device == "cuda":
        return Hops(num_ranks - 1, num_ranks - 1, 0)
    return Hops(0, num_ranks - 1 if num_ranks > 2 else 0, 1)


def exchange_share(num_ranks: int, device: Device) -> float:
    """Return the share of a link's rate that an exchange among `num_ranks` ranks gets."""
    return INCAST_SHARE if device == "cpu" and num_ranks > 2 else 1.0


def all_reduce_s(size_bytes: float, num_ranks: int, path: Path) -> float:
    """Return the seconds of one ring all-reduce: a reduce-scatter and an all-gather."""
    return 2 * shard_exchange_s(size_bytes, num_ranks, path)


def tensor_parallel_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of hidden states that a tensor parallel all-reduce (or its two halves) sums: v b s h / cp."""
    return execution.value_bytes * execution.tokens(model) * model.hidden_size


def tensor_parallel_s(model: ModelShape, execution: Execution, path: Path) -> PassTimes:
    """Return the seconds of one layer's tensor parallel collectives per micro-batch over `path`; 0 for one shard.

    If every expert is whole on one rank and no expert is shared, only attention's result is summed.
    """
    is_alone = model.experts is not None and not model.shared_experts and not execution.splits_experts
    one_s = all_reduce_s(tensor_parallel_bytes(model, execution), execution.tp, path)
    return tensor_parallel_times(execution.recompute, one_s / 2 if is_alone else one_s)


class Peers(NamedTuple):
    """A host's ranks, all of one stage while they exchange tokens, and each rank's bytes/s to other hosts.

    `num_ports` is the number of NICs whose rate the ranks share; None: one per rank.
    """

    num_slots: int
    bytes_per_s: float | None
    num_ports: int | None = None

    def on_host(self, num_ranks: int) -> int:
        """Return the number of ranks on the same host, for a group of `num_ranks` consecutive ranks."""
        return min(num_ranks, self.num_slots)


def routed_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of a rank's token copies, one per chosen expert, local ones included: v b s k h / (t cp).

    Tensor shards that split experts each send copies of all of their replica's tokens: t times as many.
    """
    copies = model.experts_per_token or 0
    return tensor_parallel_bytes(model, execution) * copies // execution.row_shards


def expert_holders(execution: Execution) -> int:
    """Return the number of expert holders between which tokens travel; the shards of one expert are one holder."""
    return max(1, execution.ep // execution.width_shards)


class RoutedParts(NamedTuple):
    """The shares of a rank's token copies that leave the host, and that are sent to other ranks of a host."""

    outside: float
    inside: float


def routed_parts(model: ModelShape, execution: Execution, peers: Peers) -> RoutedParts:
    """Return the shares of `routed_bytes` that travel if experts are chosen evenly.

    A token that is sent once goes to every host with any of its experts, and there to every rank with such an expert or
    a shard of one. Otherwise, one copy goes to each expert.
    """
    ep, on_host = execution.ep, peers.on_host(execution.ep)
    if not execution.sends_once:
        outside = 1 - on_host / ep
        return RoutedParts(outside, 1 - outside - 1 / expert_holders(execution))
    hosts, copies = ep / on_host, model.experts_per_token or 1
    others = (hosts - 1) * _chosen(model, hosts)
    chosen = _chosen(model, expert_holders(execution))
    return RoutedParts(others / copies, ep * chosen * (1 - 1 / on_host) / copies)


def _chosen(model: ModelShape, parts: float) -> float:
    """Return the probability that a token chooses any expert in a given one of `parts` equal parts."""
    experts, chosen = model.experts or 1, model.experts_per_token or 1
    return 1 - comb(experts - round(experts / parts), chosen) / comb(experts, chosen)


def routed_share(execution: Execution) -> float:
    """Return the share of the rate between hosts that tokens get on their way to experts."""
    return SENT_ONCE_SHARE if execution.sends_once else ALL_TO_ALL_SHARE


def expert_parallel_s(model: ModelShape, execution: Execution, inside: Path, peers: Peers | None) -> PassTimes:
    """Return the seconds in which one layer's tokens travel to their experts and back; 0 if all experts are here.

    The load is assumed to be balanced. Tokens travel both ways in a forward, and their gradients in a backward. Traffic
    inside hosts overlaps with traffic between them. Ranks that share an expert gather the rows of all of them, unless
    tokens are sent to each rank, and reduce-scatter the results.
    """
    if max(expert_holders(execution), execution.etp) == 1 or model.experts is None or peers is None:
        return PassTimes(0.0, 0.0)
    size, parts = routed_bytes(model, execution), routed_parts(model, execution, peers)
    local_s = size * parts.inside / inside.bandwidth_bytes_per_s + inside.latency_s
    rate = routed_share(execution) * (peers.bytes_per_s or inside.bandwidth_bytes_per_s)
    shards = 1 if execution.sends_once else execution.etp
    gathered_s = shard_exchange_s(size * shards, shards, inside)
    return tensor_parallel_times(execution.recompute, max(local_s, size * parts.outside / rate) + gathered_s)


def context_parallel_s(
    model: ModelShape, execution: Execution, inside: Path, peers: Peers | None, core_s: float
) -> PassTimes:
    """Return the seconds a layer waits for keys and values from other parts of its sequences; 0 without cp.

    In a ring, each replica passes keys and values on during its attention, which takes `core_s` in all and hides the
    transfer. Gathering is not hidden. If the traffic leaves a host, all of the host's tensor shards send at once:
    through one NIC each in a ring, through all NICs when gathering.
    """
    if execution.cp == 1 or peers is None:
        return PassTimes(0.0, 0.0)
    rate = inside.bandwidth_bytes_per_s
    if execution.cp * execution.tp > peers.num_slots and peers.bytes_per_s is not None:
        ports = 1 if execution.gathers_keys else peers.num_ports or peers.num_slots
        rate = min(rate, peers.num_slots * peers.bytes_per_s / max(execution.tp, ports))
    block_s = key_value_bytes(model, execution) / rate + inside.latency_s
    hidden_s = 0.0 if execution.gathers_keys else core_s / execution.cp
    forward_s = (execution.cp - 1) * max(0.0, block_s - hidden_s)
    return PassTimes(forward_s, forward_s * backward_key_passes(execution))


def backward_key_passes(execution: Execution) -> int:
    """Return the number of times a backward moves keys and values, or gradients of that size: 1 to 3.

    A ring moves both, and keys and values once more if the forward is repeated. Gathered ones are kept unless gathering
    is repeated. Sources: Megatron-Core's guide to context parallelism; torch's flex attention, which saves inputs.
    """
    if execution.gathers_keys:
        return 1 if execution.recompute == "none" else 2
    return 3 if execution.recompute == "full" else 2


def context_outside_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes a shard sends to a neighbour on another host, for the mean layer and micro-batch, both passes.

    Frozen first layers have no backward.
    """
    times = 1 + backward_key_passes(execution) * backward_share(model, execution.trainable)
    return round(times * (execution.cp - 1) * key_value_bytes(model, execution))


def expert_exchange_part(execution: Execution, peers: Peers | None) -> float:
    """Return a routed expert parameter's traffic in the gradient exchange, as a share of any other parameter's.

    Experts have smaller groups, and each host has several of these: one for each of its expert ranks.
    """
    if peers is None or execution.dp == 1:
        return 0.0
    part = shard_exchange_bytes(1.0, execution.expert_dp) / shard_exchange_bytes(1.0, execution.dp)
    inside = execution.dp * execution.tp <= peers.num_slots
    return part if inside else part * peers.on_host(execution.ep) / execution.tp


def tensor_parallel_times(recompute: Recompute, one_all_reduce_s: float) -> PassTimes:
    """Return the times of two all-reduces (or reduce-scatter and all-gather pairs) in each pass of a layer.

    A backward that repeats the whole forward has two more. Source: Korthikanti et al., Reducing Activation
    Recomputation in Large Transformer Models, 2022.
    """
    forward_s = 2 * one_all_reduce_s
    return PassTimes(forward_s, forward_s * (2 if recompute == "full" else 1))
