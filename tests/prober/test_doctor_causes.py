"""Each cause that NCCL's logs can show, from lines written by hand; and what must not be read as one."""

from __future__ import annotations

import pytest

from prober.findings.catalogue import explain
from prober.nccl_logs.cause_texts import CAUSES
from prober.nccl_logs.diagnose import SOUND, diagnose
from prober.nccl_logs.fault_signs import SIGNS
from prober.nccl_logs.read_log import version_of_code
from tests.builders.nccl_logs import diagnosed, facts_of, info, two_hosts, warn

ROCE = info("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>")
IB = info("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>")
ON_IB = info("Using network IB")
ON_TCP = info("Using network Socket")
FAILED = info("transport/net.cc:1134 -> 6")
COMPLETION = "NET/IB: Got completion from peer 10.0.0.2<41000> with "
GIDS = "local GID index 3, local GID ::ffff:10.0.{}.1, remote GID ::ffff:10.0.{}.2"
QP = "Call to ibv_modify_qp failed with "
NO_FILE = "cannot open shared object file: No such file or directory"
DEVICE = ", on dev mlx5_1:1, curr state INIT, next state RTR, "


def net(way: str, path: str, channel: int = 0, ranks: str = "0[0] -> 1[0]") -> str:
    return info(f"Channel {channel:02d}/0 : {ranks} [{way}] via NET/{path}")


def ec2_without_plugin(interface: str, local: int) -> list[str]:
    """Return the lines of a process over TCP on a host that is named by its address, as EC2 does."""
    texts = [
        *(f"Bootstrap: Using {interface}:10.0.3.7<0>", "NET/IB : No device found.", "Using network Socket"),
        f"comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks {local} localRank 0 MNNVL 0",
    ]
    return [info(text, "ip-10-0-3-7") for text in texts]


FAULTS = {
    "version-mismatch": [
        [warn("Mismatched NCCL version detected : rank 1 version 22105 rank 0 version 22005")],
        [
            info("Bootstrap : Using eth0:10.0.0.1<0>"),
            warn("ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2)"),
        ],
        [
            "NCCL version 2.19.3+cuda12.3",
            info("NCCL version 2.21.5+cuda12.4"),
            warn("Message truncated : received 1024 bytes instead of 256"),
            FAILED,
        ],
    ],
    "wrong-interface": [
        [warn("Bootstrap : no socket interface found")],
        [info("NCCL_SOCKET_IFNAME set by environment to bond7"), warn("NET/Socket : no interface found")],
        [warn("NET/IB : No IP interface found.")],
        [info("Bootstrap: Using docker0:172.17.0.1<0>"), *two_hosts(completed=False)],
        [
            info("Bootstrap : Using eth0:10.0.0.2<0>"),
            warn("socketStartConnect: Connect to 172.17.0.1<35001> failed : Connection refused"),
        ],
        [warn("socketPollConnect: connect to 169.254.3.4<1> returned Connection refused, exceeded error retry count")],
    ],
    "bootstrap-blocked": [
        [info("misc/socket.cc:564 -> 2"), info("bootstrap.cc:270 -> 2"), info("init.cc:1303 -> 2")],
        [warn("socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused")],
        [
            info("Bootstrap : Using eth0:172.17.0.2<0>"),
            warn("socketStartConnect: Connect to 172.17.0.1<4000> failed : Connection refused"),
        ],
        [warn("socketPollConnect: exceeded timeouts (20001)")],
        [warn("socketPollConnect: connect to 10.0.0.2<4000> returned No route to host, exceeded error retry count")],
        [
            *(info("Using network Socket"), *two_hosts(), net("send", "Socket/0")),
            warn("socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused"),
        ],
        [  # NVIDIA/nccl-tests issue 166: the threads of other GPUs go on
            warn("socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort"),
            info("misc/socket.cc:564 -> 2"),
            info("Channel 20 : 5[5] -> 4[4] via SHM/direct/direct", gpu=5),
            net("send", "Socket/0"),
        ],
        ["Last error:", "socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection timed out"],
    ],
    "gdr-broken": [
        [warn("NET/OFI Unable to register memory (type = 2) for device 4. RC: -22", "register_rail_mr_buffer:617")],
        [IB, warn(f"{COMPLETION}error 4, opcode 32564, len 32564, vendor err 81 (Send)")],
        [IB, warn(f"{COMPLETION}status=4 opcode=0 len=0 vendor err 81 (Recv) hca mlx5_0")],
        [IB, warn(f"{COMPLETION}status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) vendor_err=81 hca mlx5_0")],
        [IB, warn("Call to ibv_reg_mr failed with error Bad address", "misc/ibvwrap.cc:160")],
        [IB, warn("Call to ibv_reg_mr_iova2 failed with error Bad address", "misc/ibvwrap.cc:200"), FAILED],
    ],
    "rdma-unreachable": [
        [warn("NET/IB : Remote RoCE device is incompatible with the local [0]mlx5_0:1/IB. Try NICs of one link type")],
        [IB, warn(f"{COMPLETION}error 12, opcode 0, len 0, vendor err 129 (Recv)")],
        [IB, ON_IB, net("send", "IB/0/GDRDMA"), *two_hosts(), warn("NET/IB : Got async event : port error")],
        [IB, warn("NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local work queue catastrophic error")],
        [IB, warn("NET/IB : mlx5_0:1 Got async error event: IBV_EVENT_PORT_ERR")],
        [IB, warn(f"{COMPLETION}status=transport retry counter exceeded(12) opcode=SEND(0) vendor_err=129 hca mlx5_0")],
        [ROCE, warn(f"{QP}error Connection timed out", "misc/ibvwrap.cc:187")],
        [ROCE, "NCCL version 2.17.1+cuda12.0", warn(f"{COMPLETION}error 12, opcode 0, len 0, vendor err 129")],
        [  # a port that fails first
            *(ROCE, info("NCCL_IB_GID_INDEX set by environment to 0")),
            warn("NET/IB : mlx5_1:1 Got async event : port error"),
            warn(f"{COMPLETION}error 12, opcode 0, len 0, vendor err 129"),
        ],
        [  # one lost connection of a routed network that worked
            *(ROCE, info("Connected all rings")),
            warn(f"{COMPLETION}status=12 vendor err 129 localGid ::ffff:10.0.1.1 remoteGids::ffff:10.0.2.2 hca mlx5_1"),
        ],
        [ROCE, warn(f"{QP}110 Connection timed out{DEVICE}{GIDS.format(1, 1)}", "misc/ibvwrap.cc:262")],
    ],
    "rails-unroutable": [
        [ROCE, warn(f"{QP}110 Connection timed out{DEVICE}{GIDS.format(1, 2)}", "misc/ibvwrap.cc:262")],
        [
            ROCE,
            warn(f"{COMPLETION}status=12 vendor err 129 localGid ::ffff:10.0.1.1 remoteGids::ffff:10.0.2.2 hca mlx5_1"),
        ],
        [
            *(ROCE, info("Connected all rings")),
            warn(f"{COMPLETION}status=12 vendor err 129 localGid ::ffff:10.0.1.1 remoteGids::ffff:10.0.2.2 hca mlx5_1"),
            warn(f"{COMPLETION}status=12 vendor err 129 localGid ::ffff:10.0.1.1 remoteGids::ffff:10.0.4.2 hca mlx5_1"),
        ],
    ],
    "roce-gid": [
        [
            *(ROCE, info("NCCL_IB_GID_INDEX set by environment to 0")),
            warn(f"{COMPLETION}error 12, opcode 0, len 0, vendor err 129"),
        ],
        [ROCE, warn(f"{QP}error Network is unreachable", "misc/ibvwrap.cc:187")],
        [ROCE, warn(f"{QP}22 Invalid argument{DEVICE}{GIDS.format(1, 1)}", "misc/ibvwrap.cc:262")],
        [ROCE, warn(f"{QP}110 Connection timed out{DEVICE}local GID index 1, local GID fe80::1, remote GID fe80::2")],
        [
            ROCE,
            warn(f"{COMPLETION}status=12 opcode=0 vendor err 129 localGid fe80::1 remoteGids fe80::2 hca mlx5_1"),
        ],
        [ROCE, info("NCCL_IB_GID_INDEX set by environment to 1."), warn(f"{QP}error Connection timed out")],
    ],
    "locked-memory": [
        [IB, warn("Call to ibv_create_qp failed with error Cannot allocate memory", "misc/ibvwrap.cc:170")]
    ],
    "shm-failed": [
        [
            warn(
                "Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes, error: No space left on device (28)",
                "misc/shmutils.cc:88",
            )
        ],
        [warn("Error while attaching to shared memory segment /dev/shm/nccl-x, error: No such file or directory (2)")],
        [
            info("fallocate: Failed to extend /dev/shm/nccl-x, error: No space left on device (28) - retrying"),
            FAILED,
        ],
    ],
    "nvls-failed": [
        [warn("Cuda failure 1 'invalid argument'", "transport/nvls.cc:251")],
        [
            warn(
                "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
                "transport/nvls.cc:379",
            )
        ],
        [info("transport/nvls.cc:409 -> 1")],
    ],
    "sharp-unavailable": [
        [ON_IB, warn("NET/IB : SHARP coll init error: Cannot create SHARP job(-11)", "sharp_plugin.c:320")],
        [ON_IB, warn("Cannot initialize CollNet, using point-to-point network instead", "transport.cc:323")],
        [
            info("NCCL_COLLNET_ENABLE set by environment to 1."),
            ON_IB,
            info("NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5)."),
        ],
        [
            *(info("NCCL_COLLNET_ENABLE set by environment to 1."), ON_IB),
            info("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
        ],
        [ON_IB, "[C25L18:0:24972 - comm.c:374] ERROR Failed to lock SAT tree(ID:0x40 ret:0x4)"],
        [ON_IB, "[n1:0:999] ERROR Job (0x1) failed: No resource in sharp_alloc_job in sharp_create_job"],
    ],
    "env-mismatch": [
        [
            *(info("NCCL_IB_DISABLE set by environment to 1."), ON_TCP),
            *(
                info("Using network IB", "n2", 11),
                info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>", "n2", 11),
            ),
        ],
        [
            *(ON_IB, *two_hosts()),
            warn("NET/IB : req 0/1 tag 0 peer ::2<58> collective mismatch error, local size 496640 remote size 65536"),
        ],
        [
            *(info("NCCL_PROTO set by environment to Simple"), ON_IB, info("Using network IB", "n2", 11)),
            warn("NET/IB : req 0/1 tag 0 peer ::2<58> collective mismatch error, local size 496640 remote size 65536"),
        ],
    ],
    "efa-plugin-failed": [
        [info("NET/OFI No eligible providers were found"), info("NET/IB : No device found."), ON_TCP],
        [warn("NET/OFI aws-ofi-nccl initialization failed", "nccl_net_ofi_create_plugin:335"), ON_TCP],
        [info("NET/OFI Selected Provider is tcp;ofi_rxm (found 2 nics)"), info("Using network AWS Libfabric")],
    ],
    "tcp-cloud-plugin-missing": [
        [warn("Error: network AWS Libfabric not found.")],
        *(
            [info(f"NET/Plugin: {text} : when loading libnccl-net.so"), info("NET/IB : No device found."), ON_TCP]
            for text in (
                f"Plugin load returned 2 : libfabric.so.1: {NO_FILE}",
                f"Plugin load returned 2 : libcudart.so.11.0: {NO_FILE}",
                "Plugin load returned 2 : /lib/libfabric.so.1: version `FABRIC_1.6' not found (required by /x)",
            )
        ),
        [info(f"NET/Plugin : dlerror=libhwloc.so.15: {NO_FILE} No plugin found (libnccl-net.so)"), ON_TCP],
        ["FI_PROVIDER=efa", info("NET/Plugin: No plugin found (libnccl-net.so)"), ON_TCP],
        [info("NET/Plugin: Could not find: libnccl-net-aws-ofi.so libnccl-net.so."), ON_TCP],
        ec2_without_plugin("ens32", 4),
        ec2_without_plugin("ens5", 8),
        [
            info("NET/Plugin: Plugin name set by env to libnccl-net-ofi.so"),
            info("NET/Plugin: Could not find: libnccl-net-ofi.so"),
            ON_TCP,
        ],
        [info(f"NET/Socket : Using {' '.join(f'[{n}]eth{n}:10.0.{n}.4<0>' for n in range(5))}"), ON_TCP],
    ],
    "tcp-ib-disabled": [
        [info("NCCL_IB_DISABLE set by environment to 1."), ON_TCP],
        [info("NCCL_NET set by environment to Socket"), ON_TCP],
    ],
    "tcp-no-verbs-library": [
        [info("Failed to open libibverbs.so[.1]"), ON_TCP],
        [info("Count not open libibverbs.so.1"), ON_TCP],
    ],
    "tcp-no-ib-device": [
        [info("NET/IB : No device found."), ON_TCP],
        [
            *(info(f"NET/Plugin: Plugin load returned 2 : libnccl-net.so: {NO_FILE} : when loading libnccl-net.so"),),
            *(info("NET/IB : No device found."), ON_TCP),
        ],
        ec2_without_plugin("ens5", 4),
        [
            *(info("NET/IB : No device found."), ON_TCP),
            info(
                "NET/Socket : Using [0]eth0:10.0.0.4<0> [1]cali1:10.1.0.1<0> [2]veth2:10.2.0.1<0>"
                " [3]docker0:172.17.0.1<0> [4]eth1:fe80::1<0> [5]eth2:fe80::2<0>"
            ),
        ],
    ],
    "software-rdma": [[info("NET/IB : Using [0]siw_eth0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"), ON_IB]],
    "gdr-off": [
        [IB, ON_IB, net("send", "IB/0"), net("receive", "IB/0")],
        [info("Using network gIB"), net("send", "gIB/0")],
        [info("Using network FasTrak"), net("send", "FasTrak/0")],
        [info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"), IB, ON_IB],
        [IB, ON_IB, net("receive", "IB/0/GDRDMA"), info("Channel 00/0 : 3[1] -> 1[1] [receive] via NET/IB/1", pid=11)],
        [IB, ON_IB, net("send", "IB/0/GDRDMA"), info("Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1", pid=11)],
    ],
    "one-nic-of-many": [
        [
            *(IB, ON_IB),
            *(
                info(f"Channel {channel:02d}/0 : {n}[{n}] -> 9[1] [send] via NET/IB/0/GDRDMA", pid=n)
                for n in (10, 11)
                for channel in (0, 1)
            ),
        ],
        [
            *(info("NCCL_IB_HCA set by environment to =mlx5_0:1"), ON_IB, info("NET/IB : Using [0]mlx5_0:1/IB [RO]")),
            info("comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"),
        ],
        [
            *(info("NCCL_IB_HCA set by environment to mlx5_3", pid=17, gpu=7), ON_IB),
            info("NET/IB : Using [0]mlx5_3:1/IB [RO]", pid=17, gpu=7),
            info("comm 0x5 rank 7 nranks 16 cudaDev 7 busId 8000 - Init COMPLETE", pid=17, gpu=7),
        ],
        [
            info("NET/OFI Running on p5.48xlarge platform, topology file x"),
            info("NET/OFI Selected provider is efa, fabric is efa (found 8 nics)"),
        ],
    ],
    "rails-crossed": [
        [
            *(IB, ON_IB, info("NCCL_CROSS_NIC set by environment to 1.")),
            *(net("send", "IB/0/GDRDMA", channel, "0[0] -> 9[1]") for channel in (0, 1)),
            *(net("receive", "IB/1/GDRDMA", channel, "0[0] -> 9[1]") for channel in (0, 1)),
        ]
    ],
}


@pytest.mark.parametrize(("cause", "lines"), [(cause, lines) for cause, logs in FAULTS.items() for lines in logs])
def test_cause_is_the_verdict(cause: str, lines: list[str]) -> None:
    found = diagnosed(*lines)
    assert found.cause == cause, found
    assert found.evidence
    assert found.remedy


def test_every_cause_that_can_be_a_verdict_is_tried_and_names_rules_of_the_audit() -> None:
    assert {text.id for text in CAUSES if not text.is_remark} == set(FAULTS)
    assert all(explain(text.rule) for text in CAUSES if text.rule)
    assert len({text.id for text in CAUSES}) == len(CAUSES)


def test_every_needle_is_a_part_of_lines_that_its_form_matches() -> None:
    lines = [line for logs in FAULTS.values() for log in logs for line in log]
    assert [sign for sign, needle, form in SIGNS for line in lines if form.search(line) and needle not in line] == []


# What must not be read as a fault.


def test_gdr_of_channels_beats_gdr_0_of_the_rings() -> None:
    found = diagnosed(IB, ON_IB, net("send", "IB/0/GDRDMA"), info("Connected all rings, use ring PXN 0 GDR 0"))
    assert (found.cause, found.run.gdr) == (SOUND, True)


def test_dma_buf_that_is_available_is_not_gpu_direct() -> None:
    found = diagnosed(ROCE, ON_IB, info("DMA-BUF is available on GPU device 0"), net("send", "IB/0"))
    assert (found.cause, found.run.gdr) == ("gdr-off", False)


def test_gpu_direct_that_no_line_shows_is_unknown_and_no_fault() -> None:
    found = diagnosed(IB, ON_IB, *two_hosts())
    assert (found.cause, found.run.gdr) == (SOUND, None)


def test_no_device_after_a_failed_plugin_is_not_a_finding_of_its_own() -> None:
    found = diagnosed(info("NET/OFI No eligible providers were found"), info("NET/IB : No device found."), ON_TCP)
    assert "tcp-no-ib-device" not in [finding.cause for finding in found.also]


def test_nonsense_family_without_a_bootstrap_line_or_a_name_allows_no_verdict() -> None:
    found = diagnosed(
        warn("ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)")
    )
    assert found.cause is None
    assert "NCCL version" in found.needed


def test_harmless_warnings_leave_a_run_sound() -> None:
    found = diagnosed(
        *(IB, ON_IB, net("send", "IB/0/GDRDMA"), *two_hosts()),
        warn("Call to bind failed: Address already in use", "ras/client_support.cc:181"),
        warn("NET/OFI Failed to open gdrdrv: gdrcopy is not there"),
        info("Call to ibv_set_ece failed with error Operation not supported errno 95"),
        info("NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol."),
    )
    assert found.cause == SOUND


def test_rubbish_after_an_error_is_not_read() -> None:
    found = diagnosed(warn(f"{COMPLETION}error 12, opcode 4, len 4, vendor err 129 (Recv)"))
    assert found.cause == "rdma-unreachable"


def test_the_flush_that_follows_an_error_is_not_the_cause() -> None:
    flush = warn(f"{COMPLETION}status=5 opcode=0 len=0 vendor err 249 (Recv)")
    assert (
        diagnosed(flush, flush, warn(f"{COMPLETION}error 4, opcode 1, len 1, vendor err 81 (Send)")).cause
        == "gdr-broken"
    )
    assert diagnosed(IB, flush, FAILED).cause is None


def test_merged_ports_are_all_named_and_are_one_device() -> None:
    line = "NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/RoCE} [RO]"
    facts = facts_of(info(line))
    (process,) = facts.processes.values()
    assert [(port.device, port.name) for port in process.devices] == [
        (0, "mlx5_2"),
        (0, "mlx5_3"),
        (1, "mlx5_0"),
        (1, "mlx5_1"),
    ]


def test_virtual_device_of_merged_ports_is_not_one_nic_of_two() -> None:
    channels = [info(f"Channel 00/0 : {n}[{n}] -> 9[1] [send] via NET/IB/2/GDRDMA", pid=n) for n in (10, 11)]
    assert diagnosed(IB, ON_IB, *channels).cause == SOUND


def test_hosts_of_one_name_are_told_apart_by_address() -> None:
    first = info("Bootstrap : Using eth0:10.0.0.1<0>", "lab", 1)
    second = info("Bootstrap : Using eth0:10.0.0.2<0>", "lab", 2)
    assert diagnosed(first, second).run.hosts == ("lab (10.0.0.1)", "lab (10.0.0.2)")


def test_the_largest_of_several_communicators_is_described() -> None:
    small = "ncclCommSplit comm 0x9 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 parent 0x5 commId 0x8 - Init START"
    found = diagnosed(IB, ON_IB, *two_hosts(ranks=16), info(small), net("send", "IB/0/GDRDMA"))
    assert (found.run.num_ranks, found.run.num_nodes) == (16, 2)


def test_tcp_of_a_run_on_one_host_is_no_fault() -> None:
    one = info("comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0")
    found = diagnosed(info("NET/IB : No device found."), ON_TCP, one, info("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"))
    assert found.cause == SOUND


def test_tcp_that_no_line_explains_allows_no_verdict() -> None:
    found = diagnosed(ON_TCP, *two_hosts())
    assert found.cause is None
    assert "NCCL_DEBUG_SUBSYS" in found.needed


def test_communicator_that_is_never_made_allows_no_verdict_and_counts_its_ranks() -> None:
    found = diagnosed(IB, ON_IB, *two_hosts(ranks=16, completed=False))
    assert found.cause is None
    assert "1 of 16 ranks" in found.says


def test_peer_that_closed_its_connections_is_not_the_cause() -> None:
    found = diagnosed(
        IB, warn("socketProgress: Connection closed by remote peer n2<4000>"), info("misc/socket.cc:749 -> 6")
    )
    assert found.cause is None
    assert [finding.cause for finding in found.also] == ["peer-exited"]


def test_small_communicator_that_was_made_does_not_hide_that_the_large_one_was_not() -> None:
    own = "ncclCommInitRank comm 0x9 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0x8 - Init COMPLETE"
    refused = warn("socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused")
    assert diagnosed(info(own), *two_hosts(completed=False), refused).cause == "bootstrap-blocked"


def test_dgx_spark_has_no_gpu_direct_to_miss() -> None:
    spark = info("NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:10.0.0.1<0>")
    found = diagnosed(spark, ON_IB, net("send", "IB/0"), net("send", "IB/1", 1))
    assert (found.cause, found.run.gdr) == (SOUND, False)


@pytest.mark.parametrize(
    "status", ["status=11 opcode=0 len=0 vendor err 137", "error 5, opcode 0, len 0, vendor err 249"]
)
def test_completion_that_no_rule_knows_is_never_sound(status: str) -> None:
    found = diagnosed(IB, ON_IB, net("send", "IB/0/GDRDMA"), *two_hosts(), warn(f"{COMPLETION}{status} (Recv)"))
    assert found.cause is None
    assert "vendor err" in found.evidence[0].text


def test_collective_that_timed_out_is_never_sound() -> None:
    timeout = "[E] ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
    lines = (IB, ON_IB, net("send", "IB/0/GDRDMA"), *two_hosts(), timeout)
    assert diagnosed(*lines).cause is None
    ring = info("NCCL_ALGO set by environment to Ring")
    assert diagnosed(*lines, ring, info("Using network IB", "n2", 11)).cause == "env-mismatch"


def test_error_that_no_rule_knows_is_shown_without_a_verdict() -> None:
    found = diagnosed(IB, warn("Cuda failure 999 'unknown error'", "enqueue.cc:77"), FAILED)
    assert found.cause is None
    assert "unknown error" in found.evidence[0].text


def test_stopping_cause_goes_before_a_slow_one() -> None:
    found = diagnosed(ROCE, ON_IB, net("send", "IB/0"), warn(f"{QP}error Network is unreachable"))
    assert found.cause == "roce-gid"
    assert "gdr-off" in [finding.cause for finding in found.also]


def test_host_without_gpu_direct_is_named_where_others_have_it() -> None:
    found = diagnose(
        facts_of(net("send", "IB/0/GDRDMA"), info("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "n2"))
    )
    assert found.cause == "gdr-off"
    assert "n2" in found.says


def test_several_files_are_one_run() -> None:
    found = diagnose(facts_of(*("\n".join(two_hosts(rank=rank)) for rank in (0, 1)), "\n".join([IB, ON_IB])))
    assert found.run.num_ranks == 2
    assert found.cause == SOUND


PREFIXES = (
    *(
        "",
        "[rank0]:",
        "[default3]:",
        "(RayTrainWorker pid=3787, ip=10.62.2.7) ",
        "[1,0]<stdout>:",
        "0: ",
        "[trainer0|0]:",
    ),
    *(
        "  | 2025-05-16T16:39:51.208-07:00 | ",
        "2025-05-16T16:39:51.208-07:00",
        "worker-1  | ",
        "[2026-03-13 22:26:02] ",
    ),
    *("\x1b[36m(pid=3)\x1b[0m ", '{"log":"'),
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_of_a_launcher_is_taken_off(prefix: str) -> None:
    facts = facts_of(prefix + info("Bootstrap : Using eth0:10.0.0.1<0>", "node-1.example.org", 4711))
    (process,) = facts.processes.values()
    assert (process.host, process.pid, process.interfaces) == ("node-1.example.org", "4711", {"eth0": "10.0.0.1"})


def test_blanked_pid_and_missing_prefix_are_read() -> None:
    assert diagnosed(
        "host-07:XXXXXX [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with error No such device"
    ).cause
    assert diagnosed("transport/nvls.cc:251 NCCL WARN Cuda failure 1 'invalid argument'").cause == "nvls-failed"


@pytest.mark.parametrize(("code", "version"), [(22705, "2.27.5"), (21403, "2.14.3"), (2708, "2.7.8")])
def test_code_of_a_version_is_decoded(code: int, version: str) -> None:
    assert version_of_code(code) == version


def test_a_larger_communicator_inside_a_host_does_not_hide_a_slow_one_between_hosts() -> None:
    inside = [
        info("comm 0x6 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"),
        info("ncclCommInitRank comm 0x6 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x8 - Init COMPLETE"),
    ]
    none = info("NET/IB : No device found.")

    found = diagnosed(none, ON_TCP, *two_hosts(), net("send", "Socket/0"), *inside)

    assert found.cause == "tcp-no-ib-device"


def test_a_plugin_that_is_switched_off_is_not_missed() -> None:
    found = diagnosed(
        info("NET/Plugin: Plugin name set by env to libnccl-net-none.so"),
        info("NET/Plugin: No plugin found (libnccl-net-none.so)"),
        info("NET/IB : No device found."),
        ON_TCP,
        *two_hosts(),
    )

    assert found.cause == "tcp-no-ib-device"


@pytest.mark.parametrize("event", ["port active", "SM change", "LID change"])
def test_an_event_of_a_port_that_works_is_no_failure(event: str) -> None:
    gpu_direct = net("send", "IB/0/GDRDMA")
    found = diagnosed(IB, ON_IB, *two_hosts(), gpu_direct, warn(f"NET/IB : mlx5_0:1 Got async error event: {event}"))

    assert found.cause == SOUND


def test_warning_that_no_rule_knows_is_a_remark_of_a_run_that_goes_on() -> None:
    found = diagnosed(IB, ON_IB, *two_hosts(), warn("Something odd about the frobnicator"))
    assert found.cause == SOUND
    assert [finding.cause for finding in found.also] == ["unknown-warning"]


def test_missing_verbs_and_ec2_without_its_plugin_are_open_and_a_broken_plugin_is_not() -> None:
    verbs = diagnosed(info("Failed to open libibverbs.so[.1]"), ON_TCP)
    assert (verbs.cause, verbs.is_open) == ("tcp-no-verbs-library", True)
    assert not diagnosed(
        info("NCCL_IB_TC set by environment to 3"), info("Failed to open libibverbs.so"), ON_TCP
    ).is_open
    assert diagnosed(*ec2_without_plugin("ens5", 8)).is_open
    broken = info(f"NET/Plugin: Plugin load returned 2 : libfabric.so.1: {NO_FILE} : when loading libnccl-net.so")
    assert not diagnosed(broken, info("NET/IB : No device found."), ON_TCP).is_open


def test_tcp_is_open_unless_something_suggests_rdma() -> None:
    none = info("NET/IB : No device found.")
    assert diagnosed(none, ON_TCP, *two_hosts()).is_open
    for line in (info("NCCL_IB_GID_INDEX set by environment to 3."), info("Bootstrap : Using ibp12s0:10.0.0.1<0>")):
        assert not diagnosed(none, ON_TCP, *two_hosts(), line).is_open
    assert not diagnosed(none, ON_TCP, *two_hosts(), ROCE.replace("n1:", "n2:")).is_open


@pytest.mark.parametrize(
    "root",
    [
        warn("socketProgress: Connection closed by remote peer n2<4000>"),
        warn("Cuda failure 2 'out of memory'", "transport/p2p.cc:273"),
    ],
)
def test_trace_through_multicast_after_another_error_is_not_the_cause(root: str) -> None:
    found = diagnosed(IB, ON_IB, root, info("transport/nvls.cc:409 -> 1"), info("init.cc:1303 -> 1"))
    assert found.cause is None


def test_connection_that_is_refused_after_a_peer_ended_is_not_the_cause() -> None:
    closed = warn("socketProgress: Connection closed by remote peer n2<4000>")
    refused = warn("socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused")
    assert diagnosed(IB, ON_IB, *two_hosts(), closed, refused).cause != "bootstrap-blocked"


def test_run_that_may_stay_on_one_host_has_no_verdict_about_tcp() -> None:
    one = info("comm 0x5 rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE")
    found = diagnosed(info("NET/IB : No device found."), ON_TCP, one, info("Channel 00 : 0[1] -> 1[2] via P2P/IPC"))
    assert found.cause is None
    assert "one host" in found.says


def test_evidence_is_of_the_host_that_is_accused() -> None:
    other, level = "n1", "NCCL_NET_GDR_LEVEL set by environment to LOC"
    channels = [net("send", "IB/0/GDRDMA"), info("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "n2", 11)]
    found = diagnosed(IB, ON_IB, info(level, other), *channels)
    assert {line.text.partition(":")[0] for line in found.evidence} == {"n2"}
    docker = [info(f"Bootstrap : Using docker0:172.17.0.{n}<0>", f"n{n}", n) for n in (1, 2)]
    found = diagnosed(info("Bootstrap : Using eth0:10.0.0.3<0>", "n3"), *docker)
    assert found.cause == "wrong-interface"
    assert found.evidence[0].text.startswith("n1:1:")


def test_communicators_without_an_identity_are_told_apart_by_their_ranks() -> None:
    made = "comm 0x{} rank {} nranks 4 cudaDev 0 busId 1000 - Init COMPLETE"
    lines = [info(made.format(pid, pid % 4), f"n{pid // 4}", pid) for pid in range(8)]
    facts = facts_of("\n".join([*lines, info(made.format("a", 0), "n0", 0)]))
    assert [len(each.ranks) for each in facts.communicators.values()] == [4, 4, 1]


def test_last_of_several_runs_in_a_log_is_read_and_joined_logs_are_one() -> None:
    start = "ncclCommInitRank comm 0x5 rank {} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x{} - Init START"
    first = [
        info(start.format(0, 7), pid=1),
        warn("Connection closed by remote peer", pid=1),
        info("init.cc:1 -> 6", pid=1),
    ]
    facts = facts_of("\n".join([*first, info("Using network IB", pid=2), info(start.format(0, 8), pid=2)]))
    assert (facts.restarts, [each.pid for each in facts.processes.values()]) == ({"log0": 4}, ["2"])
    assert list(facts.communicators) == ["0x8"]
    joined = facts_of("\n".join([*first, info("Using network IB", pid=2), info(start.format(1, 7), pid=2)]))
    assert (joined.restarts, len(joined.communicators["0x7"].ranks)) == ({}, 2)
