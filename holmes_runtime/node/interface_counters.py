"""Byte counters of this host's network interfaces, by name, and of its RDMA ports, by `mlx5_0:1`.

RDMA bypasses the kernel: a port's counters include it, an interface's do not. A port counts for the whole host,
whichever rank sends. On InfiniBand it also counts IP over InfiniBand. Counters that cannot be read are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holmes_runtime.config.rank_metrics import ByteCounters

NET_DEV = Path("/proc/net/dev")
INFINIBAND = Path("/sys/class/infiniband")
WORD_BYTES = 4  # ports count in words. Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband
# The final value of an older port, which counts in 32 bits and stops there.
FULL_WORDS = 2**32 - 1


def parse_net_dev(text: str) -> dict[str, ByteCounters]:
    """Return byte counters by interface from the text of /proc/net/dev (2 header lines; bytes are columns 1 and 9)."""
    counters = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.partition(":")
        values = columns.split()
        counters[name.strip()] = ByteCounters(sent_bytes=int(values[8]), received_bytes=int(values[0]))
    return counters


def read_byte_counters() -> dict[str, ByteCounters]:
    """Return byte counters of this host's interfaces; empty if the system has no /proc/net/dev."""
    return parse_net_dev(NET_DEV.read_text()) if NET_DEV.exists() else {}


def read_port_counters(ports: Iterable[str], root: Path = INFINIBAND) -> dict[str, ByteCounters]:
    """Return byte counters of the readable RDMA `ports`, such as `mlx5_0:1`. `root` is sysfs's folder of devices."""
    found = {}
    for port in ports:
        device, _, number = port.partition(":")
        folder = root / device / "ports" / number
        sent, received = (_words(folder, f"port_{way}_data") for way in ("xmit", "rcv"))
        if sent is not None and received is not None:
            found[port] = ByteCounters(sent * WORD_BYTES, received * WORD_BYTES)
    return found


def _words(folder: Path, name: str) -> int | None:
    """Return a counter, None if unknown. Old kernels keep 64-bit counters in a separate folder."""
    for file in (folder / "counters_ext" / f"{name}_64", folder / "counters" / name):
        try:
            words = int(file.read_text())
        except (OSError, ValueError):  # missing, or "N/A (no PMA)"
            continue
        return None if words == FULL_WORDS else words
    return None
