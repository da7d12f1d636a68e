"""What NCCL's own log says of the network of a communicator, on lines that people have recorded and published."""

# ruff: noqa: E501 - lines are as they were recorded
from __future__ import annotations

from pathlib import Path

import pytest

from holmes_runtime.comm.nccl_log import NcclLog, parse_nccl_log

# NVIDIA/nccl issue 1052.
ROCE_2_18_5 = """\
NCCL version 2.18.5+cuda12.0
node2:14159:14168 [0] NCCL INFO NCCL_IB_HCA set to mlx5_4
node2:14159:14168 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>
node2:14159:14168 [0] NCCL INFO Using network IB
"""
# vllm-project/vllm, "2 nodes serving hanging".
IB_2_20_5 = """\
VM-160-69-tencentos:561:561 [0] NCCL INFO Using non-device net plugin version 0
VM-160-69-tencentos:561:561 [0] NCCL INFO Using network IB
VM-160-69-tencentos:561:561 [0] NCCL INFO comm 0x1476dca0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 23000 - Init START
"""
# NVIDIA/nccl issue 1357: HPC-X brings a module of its own.
HPCX = """\
qh100-gpu20:39629:39686 [0] NCCL INFO P2P plugin IBext
qh100-gpu19:49357:49418 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.119<0>
qh100-gpu19:49357:49418 [3] NCCL INFO Using network IBext
"""
# NVIDIA/nccl issue 1597, EFA.
EFA = """\
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Support for DMA-BUF registrations: false
8h200-2:6831:6840 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
"""
# NVIDIA/nccl issue 527.
OLD_EFA = "ip-10-216-179-87:417138:417176 [7] NCCL INFO Using network AWS Libfabric\n"
# Published with a log of NCCL 2.27.7 on EC2.
SOCKET_2_27_7 = """\
[2026-01-02 10:24:27] ip-172-31-3-153:35113:35467 [0] ncclResult_t nccl_net_ofi_init_v6(ncclDebugLogger_t):162 NCCL WARN NET/OFI Initializing plugin failed
ip-172-31-3-153:35113:35467 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
ip-172-31-3-153:35113:35467 [0] NCCL INFO NET/Socket : Using [0]ens32:172.31.3.153<0>
ip-172-31-3-153:35113:35467 [0] NCCL INFO Initialized NET plugin Socket
ip-172-31-3-153:35113:35467 [0] NCCL INFO Assigned NET plugin Socket to comm
ip-172-31-3-153:35113:35467 [0] NCCL INFO Using network Socket
"""
# Published with a log of NCCL 2.29.7, of a host without RDMA.
SOCKET_2_29_7 = """\
lab:1425048:1425048 [0] NCCL INFO NCCL version 2.29.7+cuda12.9
lab:1425048:1425048 [0] NCCL INFO NET/IB : No device found.
lab:1425048:1425048 [0] NCCL INFO NET/IB : Using [RO]; OOB enp129s0:128.114.59.195<0>
lab:1425048:1425048 [0] NCCL INFO Failed to initialize NET plugin IB
lab:1425048:1425048 [0] NCCL INFO NET/Socket : Using [0]enp129s0:128.114.59.195<0> [1]wlp128s20f3:169.233.112.15<0> [2]tailscale0:fe80::56c4:f535:9d9e:1004%tailscale0<0>
lab:1425048:1425048 [0] NCCL INFO Assigned NET plugin Socket to comm
lab:1425048:1425048 [0] NCCL INFO Using network Socket
"""


@pytest.mark.parametrize(
    ("text", "network", "nics"),
    [
        (ROCE_2_18_5, "IB", ("mlx5_4:1",)),
        (IB_2_20_5, "IB", ()),
        (HPCX, "IBext", ("mlx5_0:1", "mlx5_1:1")),
        (EFA, "Libfabric", ()),
        (OLD_EFA, "AWS Libfabric", ()),
        (SOCKET_2_27_7, "Socket", ("ens32",)),
        (SOCKET_2_29_7, "Socket", ("enp129s0", "wlp128s20f3", "tailscale0")),
        ("", None, ()),
    ],
    ids=["2.18.5", "2.20.5", "hpc-x", "efa", "old efa", "2.27.7", "2.29.7", "no log"],
)
def test_the_network_and_its_nics_are_read(text: str, network: str | None, nics: tuple[str, ...]) -> None:
    says = parse_nccl_log(text)
    assert (says.network, says.nics) == (network, nics)


@pytest.mark.parametrize(
    ("text", "paths", "gpu_direct"),
    [
        # NVIDIA/nccl issues 707, 1412 and 1814.
        (
            "10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA\n",
            ("NET/IB/5/GDRDMA",),
            True,
        ),
        (
            "swat1-04:2017630:2017699 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3\n"
            "swat1-04:2017630:2017697 [7] NCCL INFO Channel 01/0 : 7[7] -> 6[6] via P2P/direct pointer/read\n",
            ("NET/IB/3",),
            False,
        ),
        (
            "hostname-test:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2\n",
            ("NET/IBext_v8/2",),
            False,
        ),
        (
            "spark:7:19 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0 comm 0x5a nRanks 02\n",
            ("NET/IB/0",),
            False,
        ),
        (SOCKET_2_29_7, (), None),
    ],
    ids=["gdrdma", "beside p2p", "plugin", "with its communicator", "not connected"],
)
def test_the_way_of_channels_is_read(text: str, paths: tuple[str, ...], gpu_direct: bool | None) -> None:
    says = parse_nccl_log(text)
    assert (says.paths, says.gpu_direct) == (paths, gpu_direct)


def test_a_warning_is_kept_without_its_place_in_the_source() -> None:
    assert parse_nccl_log(SOCKET_2_27_7).warnings == ("NET/OFI Initializing plugin failed",)


def test_each_reading_has_what_came_since_the_last(tmp_path: Path) -> None:
    file = tmp_path / "nccl-a1-77.log"
    log = NcclLog({"NCCL_DEBUG_FILE": str(tmp_path / "nccl-%h-%p.log")}, host="a1.cluster.org", pid=77)
    assert log.read_more().network is None
    file.write_text(ROCE_2_18_5)
    assert log.read_more().network == "IB"
    with file.open("a") as more:
        more.write(SOCKET_2_27_7)
    assert log.read_more().network == "Socket"
    assert log.read_more().network is None
