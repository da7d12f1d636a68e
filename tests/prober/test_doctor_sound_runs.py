"""Sound runs of many kinds, in lines as NCCL 2.14 to 2.30 writes them: none gets a cause that is not theirs."""

from __future__ import annotations

import pytest

from prober.nccl_logs.diagnose import SOUND
from tests.builders.nccl_logs import diagnosed, info, two_hosts, warn

TWO_ROCE = "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
EIGHT = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(8))
OVER_TCP = "Using network Socket"
NO_DEVICE = "NET/IB : No device found."
OF_8 = "ncclCommInitRank comm 0x5 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init COMPLETE"
OF_16 = "comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
P2P = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"


def rings(module: str, device: int = 0, rest: str = "/GDRDMA", *, pid: int = 10, channels: int = 2) -> list[str]:
    sends = (f"Channel {n:02d}/0 : 0[0] -> 8[0] [send] via NET/{module}/{device}{rest}" for n in range(channels))
    return [info(line, pid=pid) for line in sends]


def lines(*texts: str) -> list[str]:
    return [info(text) for text in texts]


def two_communicators(way: str) -> list[str]:
    """Return the lines of a process with two communicators, each on a NIC of its own."""
    start = "ncclCommInitRank comm 0x{0} rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1 commId 0xc{0} - Init START"
    pid = len(way)
    written = []
    made = [("a", 0), ("b", 1)]
    for name, device in made if way == "send" else reversed(made):
        written.append(info(start.format(name).replace("rank 0", f"rank {pid}"), pid=pid))
        written += [info(f"Channel 0{n}/0 : 0[0] -> 8[0] [{way}] via NET/IB/{device}/GDRDMA", pid=pid) for n in (0, 1)]
    return written


SOUND_RUNS = {
    "infiniband": [
        *lines(f"NET/IB : Using {EIGHT} [RO]; OOB eth0:10.0.0.1<0>", "Using network IB", OF_16),
        *rings("IB"),
    ],
    "roce with the GPU's own PXN": [*lines(TWO_ROCE, "Using network IB", OF_16), *rings("IB", 0, "(5)/GDRDMA")],
    "NVLink in one host": lines("NCCL version 2.18.3+cuda12.2", NO_DEVICE, OVER_TCP, P2P.replace("8", "2"))
    + lines("comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"),
    "one host, all ranks, without a count of hosts": [
        *lines("comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE", NO_DEVICE, OVER_TCP, P2P),
        info("comm 0x6 rank 1 nranks 2 cudaDev 1 busId 2000 - Init COMPLETE", pid=11),
    ],
    "one rank of a host of two": lines(
        "NCCL version 2.14.3+cuda11.7",
        *(NO_DEVICE, OVER_TCP, "Channel 00/0 : 0[1000] -> 1[2000] via P2P/IPC"),
        "comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    ),
    "multi-node NVLink": lines(
        *(NO_DEVICE, OVER_TCP, "comm 0x5 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 1"),
        "Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL",
    ),
    "EFA": [
        *lines("NET/OFI Running on p4d.24xlarge platform, topology file x"),
        *lines("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", "Using network Libfabric"),
        *rings("Libfabric"),
    ],
    "EFA of a machine type without GPUDirect": [
        *lines("NET/OFI Selected Provider is efa (found 1 nics)", "Using network AWS Libfabric"),
        *rings("AWS Libfabric", rest=""),
    ],
    "gIB": [*lines("NET/gIB : Initializing gIB v1.0.6", "Using network gIB"), *rings("gIB")],
    "TCPX": [*lines("Using network GPUDirectTCPX_v7"), *rings("GPUDirectTCPX_v7")],
    "TCPX, whose channels never say GDRDMA": [
        *lines("Using network GPUDirectTCPX_v7"),
        *rings("GPUDirectTCPX_v7", rest=""),
    ],
    "EFA of four NICs and no GPUDirect, on a machine type that no line names": [
        *lines("NET/OFI Selected Provider is efa (found 4 nics)", "Using network AWS Libfabric"),
        *rings("AWS Libfabric", rest=""),
    ],
    "multi-node NVLink before the first channel": lines(
        *(NO_DEVICE, OVER_TCP, "comm 0x5 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 1"),
    ),
    "GPUs without NVLink, which only receive by GPUDirect": [
        *lines(f"NET/IB : Using {EIGHT} [RO]; OOB eth0:10.0.0.1<0>", "Using network IB", OF_16),
        info("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA", pid=1),
        info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0", pid=1),
        info("Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/1", pid=2),
    ],
    "a NIC of storage on Ethernet": [
        *lines("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"),
        *(rings("IB", pid=1) + rings("IB", pid=2)),
    ],
    "one channel by grep": [info(TWO_ROCE), *(rings("IB", pid=1, channels=1) + rings("IB", pid=2, channels=1))],
    "one NIC in a host of four GPUs, named whole": lines(
        "NCCL_IB_HCA set by environment to mlx5_0",
        *("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"),
        "comm 0x5 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 0",
    ),
    "one NIC in a host of eight GPUs, named by a prefix": lines(
        "NCCL_IB_HCA set by environment to mlx5",
        *("NET/IB : Using [0]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB", OF_16),
    ),
    "connections that need several tries": [
        *lines(TWO_ROCE, "Using network IB"),
        *[warn("socketPollConnect: connect to 10.0.0.2<4000> returned Connection refused, retrying (1/34) after 1 s")]
        * 3,
        warn("socketPollConnect poll() failed, ret 1, error Connection timed out, revents 8"),  # NVIDIA/nccl pull 1618
        *rings("IB"),
        *two_hosts(completed=False),
    ],
    "channels with one number in two communicators": [*two_communicators("send"), *two_communicators("receive")],
    "a port that comes back": [
        *lines(TWO_ROCE, "Using network IB"),
        warn("NET/IB : mlx5_0:1 Got async event : port error", "transport/net_ib.cc:101"),
        warn("NET/IB : mlx5_0:1 Got async event : port active", "transport/net_ib.cc:101"),
        *rings("IB"),
    ],
    "multicast whose memory is gone before it is freed": [
        *lines(OF_8, TWO_ROCE, "Using network IB"),
        warn("Cuda failure 1 'invalid argument'", "transport/nvls.cc:130"),  # NVIDIA/nccl-tests issue 365
        warn("commReclaim: cleanup comm 0x555556fd69f0 rank 0 failed in destroy/abort, error 1", "init.cc:2149"),
    ],
    "a job that its launcher restarted": [
        *(info(NO_DEVICE, pid=1), info(OVER_TCP, pid=1)),
        info(OF_8.replace("COMPLETE", "START"), pid=1),
        warn("socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused", pid=1),
        info("init.cc:1 -> 2", pid=1),
        *(info(TWO_ROCE, pid=2), info("Using network IB", pid=2)),
        info(OF_8.replace("0x7", "0x8"), pid=2),
    ],
}


@pytest.mark.parametrize("name", SOUND_RUNS)
def test_sound_run_has_no_cause(name: str) -> None:
    found = diagnosed(*SOUND_RUNS[name])
    assert found.cause == SOUND, found
