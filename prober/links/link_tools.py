"""Commands of ib_write_bw, the reader of its answer, and rates of a transfer. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from holmes_core.records.inventory import Host

RDMA_MESSAGE_BYTES = 65536
SKIPPED = 0.2  # of a transfer: TCP's slow start, and what buffers and token buckets take at once
WINDOWS = 8
# Of one transfer: seconds and bytes so far, in order, from (0, 0).
Points = Sequence[Sequence[float]]

_BITS_PER_S_OF = {"Gb/sec": 1e9, "MB/sec": 8 * 2**20}  # perftest's MB are binary


def ib_write_bw(
    hca: str, address: str | None, port: str, size_bytes: int, memory_options: Sequence[str] = ()
) -> list[str]:
    """One test of `size_bytes` on `mlx5_0:1`; a client if `address` is given, else the server."""
    device, _, number = hca.partition(":")
    iterations = max(100, size_bytes // RDMA_MESSAGE_BYTES)
    words = ["ib_write_bw", "-d", device, "-i", number or "1", "-s", str(RDMA_MESSAGE_BYTES), "-n", str(iterations)]
    return [*words, "-F", "--report_gbits", "-p", port, *memory_options, *([address] if address else [])]


def cuda_options(host: Host, hca: str, tools: Collection[str]) -> list[str] | None:
    """The options of ib_write_bw for memory of the GPU next to an HCA; None where they would not work.

    Memory is registered by way of DMA-BUF where nvidia-peermem is not loaded, which takes the open driver.
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
    """The option of ib_write_bw for the GID that NCCL takes of a RoCE port; none where it is not known, or not RoCE."""
    chosen = next((nic.gid_choice for nic in host.nics if nic.hca == hca and nic.kind == "RoCE"), None)
    return [] if chosen is None else ["-x", str(chosen)]


def line_of_no_way(answer: str) -> str | None:
    """Return the line proving that the tools met and no packet was answered, or None for any other failure.

    Retries were exhausted, or RoCE did not find the peer's MAC. Source: perftest, NOTIFY_COMP_ERROR_SEND (status 12 is
    IBV_WC_RETRY_EXC_ERR) and ctx_modify_qp_to_rtr.
    """
    told = re.search(
        r"^.*(Failed status[: ]+12\b|retry counter exceeded|Failed to modify QP \d+ to RTR).*$", answer, re.M
    )
    return told[0].strip()[:200] if told else None


def parse_ib_write_bw(answer: str) -> float:
    """Average bytes per second in a perftest table. ValueError if there is none."""
    match = re.search(
        r"#bytes +#iterations +BW peak\[\S+\] +BW average\[(\S+)\].*\n *((?:[0-9.]+ +){3}[0-9.]+)", answer
    )
    if match is None or match[1] not in _BITS_PER_S_OF:
        raise ValueError("no perftest table")
    return float(match[2].split()[3]) * _BITS_PER_S_OF[match[1]] / 8


def window_rates(points: Points) -> tuple[float, ...]:
    """Bytes per second in up to 8 equal windows of a transfer but its first fifth.

    A window in which nothing came counts with its neighbour. Raises ValueError where there are too few points.
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
