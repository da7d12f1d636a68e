"""Causes that NCCL's logs can show, each with its text, remedy and source."""

from __future__ import annotations

from dataclasses import dataclass

from prober.nccl_logs.nccl_lines import Evidence

MAX_EVIDENCE = 3


@dataclass(frozen=True)
class LogFinding:
    """A cause that the logs show, with its lines. A remark may be intended, so it never is the verdict.

    With `is_open`, it is a fault only if the hosts have hardware that no line shows.
    """

    cause: str
    says: str
    remedy: str
    evidence: tuple[Evidence, ...]
    is_remark: bool
    is_open: bool = False


@dataclass(frozen=True)
class Cause:
    """The text that all findings of one cause share.

    `rule` is the rule of `holmes probe` that checks the hosts for it. `source` explains the evidence.
    """

    id: str
    says: str
    remedy: str
    source: str
    rule: str | None = None

    def advice(self, first: str) -> str:
        """Return `first`, the remedy, and the rule that checks hosts for the cause."""
        return f"{first}{self.remedy}" + (f" `holmes probe` checks the hosts for it: {self.rule}." if self.rule else "")


@dataclass(frozen=True)
class CauseText(Cause):
    """A cause that logs show."""

    is_remark: bool = False

    def finding(self, *lines: Evidence | None, detail: str = "", remedy: str = "") -> LogFinding:
        """Return the finding with its lines. `detail` is added to the sentence, and `remedy` precedes the usual one."""
        return LogFinding(
            cause=self.id,
            says=f"{self.says}{detail}",
            remedy=self.advice(remedy),
            evidence=tuple(dict.fromkeys(line for line in lines if line))[:MAX_EVIDENCE],
            is_remark=self.is_remark,
        )


_NCCL = "NCCL, src of 2.14 to 2.30"

VERSION_MISMATCH = CauseText(
    "version-mismatch",
    "Ranks load different versions of NCCL, which refuses to run or misreads the other side's messages",
    "Install the same version of NCCL on all hosts and in all images: compare `pip list | grep nccl` and `find / "
    "-name 'libnccl.so*'`; a library on LD_LIBRARY_PATH goes before the one that PyTorch brings.",
    f"{_NCCL}/init.cc; NVIDIA/nccl issue 1267",
    "HOST-NCCL-VERSION",
)
WRONG_INTERFACE = CauseText(
    "wrong-interface",
    "NCCL's sockets have no interface, or one that other hosts cannot reach",
    "Set NCCL_SOCKET_IFNAME on every host to an interface that is there and that all hosts share (`ip -br addr`), "
    "such as `NCCL_SOCKET_IFNAME==eth0`, or leave it unset; exclude others by `^docker,lo,virbr,veth`.",
    f"{_NCCL}/misc/socket.cc; NVIDIA/nccl issues 1837 and 913",
    "NET-DOCKER-CANDIDATE",
)
BOOTSTRAP_BLOCKED = CauseText(
    "bootstrap-blocked",
    "A TCP connection between hosts is refused or finds no route, so ranks cannot meet",
    "Open all TCP ports between the hosts (NCCL takes any free one): firewall, security group, network policy; check "
    "the route with `nc -zv`; if the address is on the wrong network, set NCCL_SOCKET_IFNAME.",
    f"{_NCCL}/misc/socket.cc",
    "NET-FIREWALL",
)
ENV_MISMATCH = CauseText(
    "env-mismatch",
    "An NCCL variable is set only on some ranks, or to different values, but both sides must agree on it",
    "Set it to the same value on all ranks, or nowhere: in the launcher's environment, not in a shell's profile; look "
    "in /etc/nccl.conf and ~/.nccl.conf of each host too.",
    f"{_NCCL}/misc/param.cc; NVIDIA/nccl issue 1328",
    "HOST-NCCL-CONF",
)
GDR_BROKEN = CauseText(
    "gdr-broken",
    "GPUDirect RDMA fails: the NIC cannot reach the GPU's memory",
    "Switch off ACS on the PCIe bridges (and the IOMMU, or use `iommu=pt`) on all hosts, in the BIOS or by setpci; in"
    " a virtual machine enable ATS on the NIC. To confirm: NCCL_NET_GDR_LEVEL=LOC runs, more slowly.",
    f"{_NCCL}/transport/net_ib (hint for status 4); NVIDIA/nccl issues 928 and 707",
    "PCI-ACS-ON-PATH",
)
ROCE_GID = CauseText(
    "roce-gid",
    "RoCE uses a GID that does not lead to the peer: link-local, with the wrong index, or of another family",
    "Unset NCCL_IB_GID_INDEX with NCCL 2.21 and later, which choose the GID; with older ones set it on each host to "
    "the index of the RoCE v2 GID with the IPv4 address (`show_gids`, often 3).",
    f"{_NCCL}/misc/ibvwrap.cc (hint for EINVAL); NVIDIA/nccl-tests issue 185, NVIDIA/nccl issue 769",
    "ROCE-GID-NOT-3",
)
RAILS_UNROUTABLE = CauseText(
    "rails-unroutable",
    "NICs of different rails, or of hosts that are not neighbours, cannot reach each other",
    "Set NCCL_CROSS_NIC=0, by which rings stay on their rail; keep PXN on (NCCL_PXN_DISABLE=0) for operations between"
    " rails, or route between the rails' subnets. Check with `ib_write_bw` between the two addresses.",
    f"{_NCCL}/misc/ibvwrap.cc (hint for ETIMEDOUT); NVIDIA/nccl issue 2013",
    "TOPO-RAIL-MISMATCH",
)
RDMA_UNREACHABLE = CauseText(
    "rdma-unreachable",
    "RDMA packets do not reach the peer although TCP does",
    "Check that the two ports reach each other with `ib_write_bw -d DEVICE` (RoCE: `rping` too): same fabric, "
    "partition, VLAN or subnet, link up, placement in one group of the cloud; leave out ports that do not by "
    "NCCL_IB_HCA.",
    f"{_NCCL}/transport/net_ib (status 12); stas00/ml-engineering, debugging",
    "NIC-TWO-FABRICS",
)
NO_LOCKED_MEMORY = CauseText(
    "locked-memory",
    "The process may not lock the memory that RDMA needs",
    "Raise `ulimit -l` to unlimited for the user, Slurm's daemon or the container (`--ulimit memlock=-1`).",
    "ibv_reg_mr(3) and ibv_create_qp(3), ENOMEM",
    "HOST-MEMLOCK",
)
SHM_FAILED = CauseText(
    "shm-failed",
    "Ranks of one host cannot share memory in /dev/shm",
    "Give the container shared memory of its own size and of all its ranks: `--shm-size=8g` or `--ipc=host`, in "
    "Kubernetes an emptyDir of medium Memory at /dev/shm; remove stale /dev/shm/nccl-* files.",
    f"{_NCCL}/misc/shmutils.cc; NVIDIA/nccl issues 290 and 1589",
    "HOST-SHM",
)
NVLS_FAILED = CauseText(
    "nvls-failed",
    "NVLink SHARP (NVLS) cannot set up its multicast memory",
    "Check NVIDIA Fabric Manager and the fabric's state (`nvidia-smi -q | grep -A3 Fabric`), and that containers see "
    "/dev/nvidia-caps; restart what is not sound. Until then NCCL_NVLS_ENABLE=0 runs without it.",
    f"{_NCCL}/transport/nvls.cc; NVIDIA/nccl issues 1672 and 1788",
    "GPU-FABRIC",
)
SHARP_UNAVAILABLE = CauseText(
    "sharp-unavailable",
    "SHARP is requested but unavailable: NCCL reduces on the GPUs instead of in the switches",
    "Check that the Aggregation Manager (sharp_am) runs and allows jobs of this user, that the switches support SHARP"
    " and HPC-X's plugin is loaded; otherwise unset NCCL_COLLNET_ENABLE.",
    "nccl-rdma-sharp-plugins, src/sharp_plugin.c; NVIDIA/nccl issue 1050",
    "NCCL-SHARP",
)
EFA_PLUGIN_FAILED = CauseText(
    "efa-plugin-failed",
    "EFA's network plugin (aws-ofi-nccl) is loaded but cannot start, so NCCL continues without EFA",
    "Use an image in which aws-ofi-nccl, libfabric and the EFA driver of the host fit one another (one EFA "
    "installer), and give the container the devices (/dev/infiniband/uverbs*, `vpc.amazonaws.com/efa`); `fi_info -p "
    "efa` must list them.",
    "aws-ofi-nccl, src/nccl_ofi_net.cpp; aws/aws-ofi-nccl issue 889",
    "NIC-EFA-NEEDS-PLUGIN",
)
CLOUD_PLUGIN_MISSING = CauseText(
    "tcp-cloud-plugin-missing",
    "The cloud's network plugin for NCCL is not loaded, or an older one is: traffic is TCP through the CPU",
    "Install and load the plugin of this machine type (EC2 with EFA: aws-ofi-nccl; Google A3: GPUDirect-TCPX or "
    "TCPXO, A3 Ultra and later: gIB) and put its folder on LD_LIBRARY_PATH. If the machine has no such network, TCP "
    "is all it has.",
    "aws-ofi-nccl; google/nccl-fastsocket; Google Cloud's guides to GPUDirect-TCPX",
    "NIC-EFA-NEEDS-PLUGIN",
)
IB_DISABLED = CauseText(
    "tcp-ib-disabled",
    "RDMA is switched off by a variable, so traffic between hosts is TCP",
    "Unset NCCL_IB_DISABLE (and NCCL_NET=Socket) on all ranks if the hosts have InfiniBand or RoCE: `ibv_devinfo` "
    "lists it.",
    f"{_NCCL}/transport/net_ib",
)
NO_VERBS = CauseText(
    "tcp-no-verbs-library",
    "NCCL finds no libibverbs, so it never looks for RDMA devices: traffic between hosts is TCP",
    "If the hosts have RDMA NICs, install libibverbs1 and rdma-core (ibverbs-providers) in the image. The log cannot "
    "say whether they have: `ls /sys/class/infiniband` on the host does.",
    f"{_NCCL}/misc/ibvsymbols.cc",
    "NIC-VERBS-LIBRARY",
)
NO_DEVICE = CauseText(
    "tcp-no-ib-device",
    "NCCL has libibverbs but sees no RDMA port that is up, so traffic between hosts is TCP",
    "If the hosts have RDMA NICs, give the container /dev/infiniband (`--device`, an RDMA device plugin, `--cap-add "
    "IPC_LOCK`), check NCCL_IB_HCA, and that `ibv_devinfo` shows PORT_ACTIVE; EFA and Google's GPU NICs need the "
    "cloud's plugin. Otherwise TCP is all there is.",
    f"{_NCCL}/transport/net_ib",
    "NIC-NO-UVERBS",
)
SOFT_RDMA = CauseText(
    "software-rdma",
    "The RDMA device is software (Soft-RoCE rxe or siw): each byte goes through the CPU, more slowly than over TCP",
    "Use a NIC with RDMA in hardware; else remove rxe/siw (`rdma link delete`) or set NCCL_IB_DISABLE=1 for plain TCP.",
    "Linux, drivers/infiniband/sw",
    "NIC-SOFT-RDMA",
)
GDR_OFF = CauseText(
    "gdr-off",
    "RDMA goes through the host's memory: no channel uses GPUDirect RDMA (GDR)",
    "Load nvidia-peermem (`modprobe nvidia-peermem`) or use the open kernel module with DMA-BUF, on every host, where"
    " GPU and NIC support it (data-centre and RTX professional GPUs do).",
    f"{_NCCL}/transport/net.cc (GDRDMA in the path of a channel)",
    "GDR-NO-PEERMEM",
)
ONE_NIC = CauseText(
    "one-nic-of-many",
    "Ranks use one NIC although the host has more",
    "Give the ranks all NICs of the host: name them all in NCCL_IB_HCA or unset it; in pods request every NIC (EFA: "
    "`vpc.amazonaws.com/efa: N`), best one pod with all GPUs of a node, which also uses NVLink.",
    f"{_NCCL}/graph/topo.cc",
    "NIC-COUNT-DIFFERS",
)
RAILS_CROSSED = CauseText(
    "rails-crossed",
    "Rings leave a host by one rail and enter the next by another",
    "Unless all NICs share their switches, set NCCL_CROSS_NIC=0: traffic between rails takes a hop over the spine.",
    f"{_NCCL}/graph/search.cc; NCCL's guide to NCCL_CROSS_NIC",
    "TOPO-RAIL-SWAPPED",
)

P2P_OFF = CauseText(
    "p2p-off",
    "GPUs of one host do not reach each other's memory (P2P): traffic inside the host goes through shared memory",
    "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL where they are set; `nvidia-smi topo -p2p r` shows what GPUs can do.",
    f"{_NCCL}/transport/p2p.cc",
    is_remark=True,
)
FEW_CHANNELS = CauseText(
    "few-channels",
    "NCCL uses one channel, which seldom fills a NIC",
    "Unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS, or raise NCCL_MIN_NCHANNELS.",
    f"{_NCCL}/init.cc",
    is_remark=True,
)
STALE_PLUGIN = CauseText(
    "stale-plugin",
    "A network plugin is loaded but discarded; NCCL uses its own network",
    "Remove the plugin from the image, or set NCCL_NET_PLUGIN=none.",
    f"{_NCCL}/plugin/net.cc",
    is_remark=True,
)
NVLS_BY_ENV = CauseText(
    "nvls-off-by-env",
    "NVLink SHARP is switched off by NCCL_NVLS_ENABLE=0",
    "Unset it where NVSwitches have SHARP (H100 and later) and memory suffices.",
    f"{_NCCL}/transport/nvls.cc",
    is_remark=True,
)
PODS_SPLIT = CauseText(
    "pods-split-node",
    "Pods with one GPU each split a node, so NCCL sees hosts of one rank and uses no NVLink between them",
    "Run one pod with all GPUs of the node.",
    f"{_NCCL}/init.cc (localRanks)",
    is_remark=True,
)
PEER_EXITED = CauseText(
    "peer-exited",
    "A peer closed its connections: it ended first",
    "Read the log of the rank that ended first.",
    f"{_NCCL}/misc/socket.cc",
    is_remark=True,
)
FAR_NIC = CauseText(
    "gpu-nic-far",
    "A GPU is too far from every NIC for GPUDirect RDMA",
    "Raise NCCL_NET_GDR_LEVEL (PHB, SYS) to try it, or move the NIC to the GPU's PCIe switch.",
    f"{_NCCL}/graph/paths.cc",
    "TOPO-FAR-NIC",
    is_remark=True,
)
PLUGIN_IGNORES_ENV = CauseText(
    "plugin-ignores-env",
    "NCCL_IB_DISABLE=1 is set, but an external plugin that ignores it carries the traffic",
    "Set NCCL_NET_PLUGIN=none, or NCCL_IBEXT_DISABLE=1 for HPC-X's, if RDMA should be off.",
    "nccl-rdma-sharp-plugins, src/ib_plugin.c",
    is_remark=True,
)
UNKNOWN_WARNING = CauseText(
    "unknown-warning",
    "NCCL prints a warning that no rule knows",
    "Read the lines; the run made its communicator anyway.",
    f"{_NCCL}",
    is_remark=True,
)
CAUSES = tuple(text for text in vars().copy().values() if isinstance(text, CauseText))
