"""Commands of ib_write_bw, the reader of its answer, and rates of a transfer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from holmes_core.records.inventory import Host

RDMA_MESSAGE_BYTES = 65536
SKIPPED = 0.2  # of a transfer: TCP's slow start, and bytes that buffers and token buckets take at once
WINDOWS = 8
Points = Sequence[Sequence[float]]
"""Seconds and bytes so far of one transfer, in order, from (0, 0)."""

_BITS_PER_S_OF = {"Gb/sec": 1e9, "MB/sec": 8 * 2**20}  # perftest's MB are binary


def ib_write_bw(
    hca: str, address: str | None, port: str, size_bytes: int, memory_options: Sequence[str] = ()
) -> list[str]:
    """Return the command for a test of `size_bytes` on an HCA `mlx5_0:1`: a client of `address`, or the server."""
    device, _, number = hca.partition(":")
    iterations = max(100, size_bytes // RDMA_MESSAGE_BYTES)
    words = ["ib_write_bw", "-d", device, "-i", number or "1", "-s", str(RDMA_MESSAGE_BYTES), "-n", str(iterations)]
    return [*words, "-F", "--report_gbits", "-p", port, *memory_options, *([address] if address else [])]


def cuda_options(host: Host, hca: str, tools: Collection[str]) -> list[str] | None:
    """Return the options of ib_write_bw for memory of the GPU next to an HCA, or None if they would not work.

    Without nvidia-peermem, memory is registered by DMA-BUF, which needs the open driver.
    """
    if "--use_cuda" not in tools or not host.gpus:
        return None
    device = hca.partition(":")[0]
    gpu = next((gpu.index for gpu in host.gpus if device in gpu.nearest_nics), host.gpus[0].index)
    if host.peermem:
        return [f"--use_cuda={gpu}"]
    by_dmabuf = "--use_cuda_dmabuf" in tools and host.open_gpu_driver
    return [f"--use_cuda={gpu}", "--use_cuda_dmabuf"] if by_dmabuf else None


def gid_options(host: Host, hca: str) -> list[str]:
    """Return the option of ib_write_bw for the GID of a RoCE port that NCCL uses. Empty if it is not known."""
    chosen = next((nic.gid_choice for nic in host.nics if nic.hca == hca and nic.kind == "RoCE"), None)
    return [] if chosen is None else ["-x", str(chosen)]


def unanswered_line(answer: str) -> str | None:
    """Return the line which proves that the tools met and no packet was answered, or None for other failures.

    Retries were exhausted, or RoCE did not find the peer's MAC. Source: perftest, NOTIFY_COMP_ERROR_SEND (status 12 is
    IBV_WC_RETRY_EXC_ERR) and ctx_modify_qp_to_rtr.
    """
    line = re.search(
        r"^.*(Failed status[: ]+12\b|retry counter exceeded|Failed to modify QP \d+ to RTR).*$", answer, re.M
    )
    return line[0].strip()[:200] if line else None


def parse_ib_write_bw(answer: str) -> float:
    """Return the average bytes per second in a perftest table.

    Raises:
        ValueError: There is no table.
    """
    match = re.search(
        r"#bytes +#iterations +BW peak\[\S+\] +BW average\[(\S+)\].*\n *((?:[0-9.]+ +){3}[0-9.]+)", answer
    )
    if match is None or match[1] not in _BITS_PER_S_OF:
        raise ValueError("no perftest table")
    return float(match[2].split()[3]) * _BITS_PER_S_OF[match[1]] / 8


def window_rates(points: Points) -> tuple[float, ...]:
    """Return the bytes per second in up to 8 equal windows of a transfer without its first fifth.

    A window without new bytes is joined with the next.

    Raises:
        ValueError: There are too few points.
    """
    rates = []
    start = next((point for point in points if point[0] >= SKIPPED * points[-1][0]), points[-1])
    window_s = (points[-1][0] - start[0]) / WINDOWS
    for point in points:
        if point[0] - start[0] >= 0.999 * window_s > 0 and point[1] > start[1]:
            rates.append((point[1] - start[1]) / (point[0] - start[0]))
            start = point
    if not rates:
        raise ValueError("too little arrived to tell a rate")
    return tuple(rates)
