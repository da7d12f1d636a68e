"""Seconds of messages and collectives on links. Pure functions, each with its source.

A `Path` is the share of the network that one group's traffic has between its members: bytes/s in one direction, and
the seconds of one hop. Sizes are bytes of the whole value on one member before a reduce-scatter, or after an
all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holmes_runtime.config.codec import Device
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import Recompute
from planner.cost.counts import Execution

ETHERNET_MTU_BYTES = 1500
# An exchange's share of a link among more than two ranks, since several send to one at the same time: 0.8 to 0.95 on
# Gloo's sockets between network namespaces at 50 to 200 Mbit/s, 2026-11-22. NCCL's rings have one sender each.
INCAST_SHARE = 0.9
SMALLEST_MTU_BYTES = 68  # of IPv4
TCP_HEADERS_BYTES = 20 + 20 + 12
ETHERNET_FRAMING_BYTES = 14 + 4 + 8 + 12
TUNNEL_HEADERS_BYTES = 20 + 8 + 32
TUNNEL_MTU_BYTES = 80  # less than the MTU of its path
SMALLEST_TUNNELLED_MTU_BYTES = SMALLEST_MTU_BYTES + TUNNEL_MTU_BYTES


@dataclass(frozen=True)
class Path:
    """A link as one group sees it. `latency_s` 0 where it was not measured."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class PassTimes:
    """Seconds that belong to a forward, and to a backward."""

    forward_s: float
    backward_s: float

    @property
    def both_s(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward_s + self.backward_s


def tcp_payload_share(mtu: int | None) -> float:
    """The share of an Ethernet link's rate that TCP's payload gets: (mtu - 52) / (mtu + 38); 0.941 at 1500 bytes.

    A frame of `mtu` bytes, 1500 where it is not known, holds an IPv4 header (20) and a TCP header with timestamps (32);
    around it are 14 of Ethernet header, 4 of check sequence, 8 of preamble and 12 of gap. Sources: RFC 791, RFC 9293,
    RFC 7323; IEEE 802.3. What RDMA adds, under 2 % with packets of 4096 bytes, is left out.
    """
    size = max(mtu, SMALLEST_MTU_BYTES) if mtu is not None else ETHERNET_MTU_BYTES
    return (size - TCP_HEADERS_BYTES) / (size + ETHERNET_FRAMING_BYTES)


def tunnel_payload_share(mtu: int | None) -> float:
    """Return TCP's payload in a WireGuard tunnel as a share of the rate of a link of `mtu`: 0.901 at 1500 bytes.

    The tunnel's own packets are 80 bytes smaller, as with `wg-quick`, and around each are an IPv4 header (20), UDP's
    (8), and WireGuard's header and tag (32). Source: Donenfeld, WireGuard, NDSS 2017, 5.4.6.
    """
    size = max(mtu, SMALLEST_TUNNELLED_MTU_BYTES) if mtu is not None else ETHERNET_MTU_BYTES
    inner = size - TUNNEL_MTU_BYTES
    return (inner - TCP_HEADERS_BYTES) / (inner + TUNNEL_HEADERS_BYTES + ETHERNET_FRAMING_BYTES)


def shard_exchange_bytes(size_bytes: float, num_ranks: int) -> float:
    """Return the bytes each member sends, and receives, in one reduce-scatter or one all-gather: (n-1)/n size.

    Ring, or all-to-all and local sum: the same. Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms,
    2009. Raises ValueError if num_ranks < 1.
    """
    if num_ranks < 1:
        raise ValueError(f"a collective needs a rank, got {num_ranks}")
    return (num_ranks - 1) * size_bytes / num_ranks


def shard_exchange_s(size_bytes: float, num_ranks: int, path: Path) -> float:
    """Seconds of one ring reduce-scatter or all-gather: (n-1)/n size / bandwidth + (n-1) latency; one rank: 0."""
    hops_s = (num_ranks - 1) * path.latency_s
    return shard_exchange_bytes(size_bytes, num_ranks) / path.bandwidth_bytes_per_s + hops_s


def times_as_long(sizes: Sequence[float]) -> dict[float, float]:
    """Return, by size, the slowdown of each exchange when all begin at once on a shared link: 1 to their number.

    The exchanges that are not done divide the link evenly, and the smaller ones leave it first: until an exchange of b
    bytes is done, every other has sent min(its bytes, b). The slowdown is the sum of these over b.
    """
    return {size: sum(min(other, size) for other in sizes) / size for size in set(sizes)}


class Hops(NamedTuple):
    """Latencies in the exchange of a bucket: those that keep its network busy, and those after its last byte left."""

    reduce: int
    gather: int
    late: int


def exchange_hops(num_ranks: int, device: Device) -> Hops:
    """Return the hops of a reduce-scatter and an all-gather.

    NCCL's rings take (n-1) hops each before the next bucket's begin. Gloo's reduce-scatter, an exchange of all with
    all, takes one hop, and so does its all-gather between two ranks; many of them are under way at once.
    """
    if device == "cuda":
        return Hops(num_ranks - 1, num_ranks - 1, 0)
    return Hops(0, num_ranks - 1 if num_ranks > 2 else 0, 1)


def exchange_share(num_ranks: int, device: Device) -> float:
    """Return the share of a link's rate that an exchange among so many ranks gets."""
    return INCAST_SHARE if device == "cpu" and num_ranks > 2 else 1.0


def all_reduce_s(size_bytes: float, num_ranks: int, path: Path) -> float:
    """Return the seconds of one ring all-reduce: a reduce-scatter and an all-gather."""
    return 2 * shard_exchange_s(size_bytes, num_ranks, path)


def tensor_parallel_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of the hidden states that one tensor parallel all-reduce, or its two halves, sums: v b s h."""
    return execution.value_bytes * execution.micro_batch_size * model.seq_length * model.hidden_size


def tensor_parallel_s(model: ModelShape, execution: Execution, path: Path) -> PassTimes:
    """Return the seconds one layer's tensor parallel collectives take per micro-batch over `path`. One shard: 0."""
    return tensor_parallel_times(
        execution.recompute, all_reduce_s(tensor_parallel_bytes(model, execution), execution.tp, path)
    )


def tensor_parallel_times(recompute: Recompute, one_all_reduce_s: float) -> PassTimes:
    """Two all-reduce equivalents (reduce-scatter and all-gather) in a layer's forward and two in its backward.

    Two more where the backward runs the whole forward again. Source: Korthikanti et al., Reducing Activation
    Recomputation in Large Transformer Models, 2022.
    """
    forward_s = 2 * one_all_reduce_s
    return PassTimes(forward_s, forward_s * (2 if recompute == "full" else 1))
