"""What is said of findings that no check of facts makes: of tools, clusters, trunks and measured links."""

from __future__ import annotations

from prober.rules.rule import FIELD, About

TOOL_MISSING = About(
    "PROBE-TOOL-MISSING",
    "I",
    "the shell did not find a tool that was asked (status 127)",
    "facts only these tools show are unknown",
    "install rdma-core, infiniband-diags, iproute2, ethtool or the GPU driver where they apply",
    "POSIX, Shell command language (exit status 127)",
)
TOOL_UNREAD = About(
    "PROBE-TOOL-UNREAD",
    "I",
    "a recording holds outputs of tools that Holmes does not read",
    "what they show is not in the inventory",
    "nothing to do; docs/probe.md says how to add a fact",
    "Holmes, docs/probe.md",
)
NO_PERMISSION = About(
    "PROBE-NO-PERMISSION",
    "I",
    "a tool says that only root may see what was asked",
    "what only root may read there is not known, and the rules that need it are silent",
    "probe as root, or record these tools with sudo",
    "lspci(8) (capabilities need root), dmesg(1) (kernel.dmesg_restrict)",
)
TOOL_FAILED = About(
    "PROBE-TOOL-FAILED",
    "W",
    "a tool ended with an error or died half way",
    "what was read of it is kept; the rest is unknown",
    "run the tool on the host by hand and read its message",
    "Azure/azhpc-images#213; leptonai/gpud PR 752",
)
TRUNCATED = About(
    "PROBE-TRUNCATED",
    "W",
    "an answer was cut off, or a tool did not end in time",
    "what was read of it is kept; the rest is unknown",
    "run the tool on the host by hand: one that hangs often means a device that does",
    "linux-rdma/rdma-core PR 847",
)
DRIVER_MISMATCH = About(
    "GPU-DRIVER-MISMATCH",
    "F",
    "nvidia-smi failed as a whole because driver and library have different versions",
    "no GPU can be used",
    "reload the driver or reboot",
    "nvidia-smi, exit code 18; anderskm/gputil#55",
)
PIN_CONTRADICTS = About(
    "CLUSTER-PIN-CONTRADICTS",
    "W",
    "hosts.yaml pins a host to a cluster whose fabric is another than the host's",
    "groups inside this cluster may have no common fabric",
    "correct `cluster:` in hosts.yaml, or leave it out and let the probe find it",
    "Holmes, docs/probe.md (how clusters are found)",
)
CLUSTER_NOT_KNOWN = About(
    "CLUSTER-NOT-KNOWN",
    "W",
    "no network of a RoCE or Ethernet host is known, and there are other hosts",
    "which hosts share its fabric cannot be told, so it is a cluster of its own",
    "give the interfaces addresses, or pin `cluster:` in hosts.yaml",
    "Holmes, docs/probe.md (how clusters are found)",
)
TRUNK_UNKNOWN = About(
    "NET-TRUNK-UNKNOWN",
    "W",
    "`trunks:` in hosts.yaml names a cluster that was not found",
    "what is stated of this trunk is left out of the plan",
    "name clusters as they are found, or pin their hosts with `cluster:` in hosts.yaml",
    "Holmes, docs/probe.md (trunks)",
)
TRUNK_LOW = About(
    "NET-TRUNK-LOW",
    "W",
    "a measured trunk carries less than 80 % of what hosts.yaml states",
    "the plan goes by what is stated; traffic between these clusters takes longer",
    "look at what else uses the way; correct `trunks:` in hosts.yaml, or leave it out to go by the measured",
    "Holmes, docs/probe.md (trunks)",
)
TCP_LOW = About(
    "NET-BW-LOW",
    "W",
    "TCP between two hosts stays below 70 % of the slower interface's rate, and of what the tool can do",
    "traffic over this network, such as activations between clusters, takes longer than their rate says",
    "look at MTU, duplex and drops on both interfaces, and at what else uses the way; "
    "the plan goes by the measured value",
    "IBM/autopilot, iperf check; " + FIELD,
)
RDMA_LOW = About(
    "RDMA-BW-LOW",
    "W",
    "ib_write_bw between two rails stays below 90 % of the slower rail's rate",
    "all-reduce and all-gather inside the cluster run at this rate, not the port's",
    "compare PCIe width and speed, ACS and the cable of both HCAs",
    "Azure/azurehpc-health-checks (380 of 400 Gbit/s); NCCL user guide, networking troubleshooting (ib_write_bw)",
)
GPU_RDMA_LOW = About(
    "RDMA-GPU-BW-LOW",
    "W",
    "ib_write_bw from GPU memory stays below 80 % of the same way from host memory",
    "NCCL's GPUDirect RDMA runs at this rate",
    "look at PCI-ACS-ON-PATH, PCI-IOMMU-ON, TOPO-FAR-NIC and GDR-NO-PEERMEM of both hosts",
    "NCCL user guide, networking troubleshooting (compare host-memory with GPU-memory results)",
)
PORT_CLOSED = About(
    "NET-PORT-CLOSED",
    "F",
    "a connection between two hosts to a free port was refused or filtered",
    "this link was not measured; NCCL and Gloo meet here",
    "open the ports of `net.ipv4.ip_local_port_range` between these hosts",
    "NCCL user guide, networking troubleshooting (IP ports)",
)

ABOUT = (
    *(TOOL_MISSING, TOOL_UNREAD, NO_PERMISSION, TOOL_FAILED, TRUNCATED, DRIVER_MISMATCH),
    *(PIN_CONTRADICTS, CLUSTER_NOT_KNOWN, TRUNK_UNKNOWN, TRUNK_LOW),
    *(TCP_LOW, RDMA_LOW, GPU_RDMA_LOW, PORT_CLOSED),
)
