"""Rules whose findings are reported from outside the audit: access, tools, trunks and measured links."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.errors import HostErrorKind
from prober.rule_text import FIELD, RuleText

_LEFT_OUT = "nothing is known about this host; the plan leaves it out"

UNREACHABLE = RuleText(
    "HOST-UNREACHABLE",
    "F",
    "the host's SSH port cannot be reached",
    _LEFT_OUT,
    "ping it, see that sshd listens there, and that address, port and jump hosts are right",
    "ssh(1), ssh_config(5)",
)
KEY_UNKNOWN = RuleText(
    "SSH-HOSTKEY-UNKNOWN",
    "F",
    "no known_hosts file proves the host by its key or certificate",
    _LEFT_OUT,
    "`holmes trust hosts.yaml` shows the keys and adds them once you agree",
    "sshd(8), SSH_KNOWN_HOSTS FILE FORMAT",
)
KEY_CHANGED = RuleText(
    "SSH-HOSTKEY-CHANGED",
    "F",
    "the host's key differs from known_hosts, or is revoked",
    f"someone may intercept the connection; {_LEFT_OUT}",
    "ask who reinstalled the host; then `ssh-keygen -R HOST`, and trust the new key",
    "ssh-keygen(1), ssh(1) (verifying host keys)",
)
NO_LOGIN = RuleText(
    "SSH-AUTH",
    "F",
    "the host rejects this user's key",
    _LEFT_OUT,
    "`ssh-copy-id` the key there, load it into an agent, or name `user:` and `identity_file:` in hosts.yaml",
    "ssh(1), ssh-copy-id(1), sshd_config(5)",
)
NO_ANSWER = RuleText(
    "HOST-NO-ANSWER",
    "F",
    "the host accepted the login but ran nothing",
    _LEFT_OUT,
    "log in there and run `sh`: look at the account's shell and the files it reads at its start, for a full disk or "
    "quota, and for a container that has ended",
    "sshd(8), LOGIN PROCESS; nologin(8)",
)

TOOL_MISSING = RuleText(
    "PROBE-TOOL-MISSING",
    "I",
    "the shell did not find a tool (status 127)",
    "facts that only these tools show are unknown",
    "install rdma-core, infiniband-diags, iproute2, ethtool or the GPU driver where they apply",
    "POSIX, Shell command language (exit status 127)",
)
TOOL_UNREAD = RuleText(
    "PROBE-TOOL-UNREAD",
    "I",
    "a recording holds outputs of tools that Holmes does not read",
    "what they show is not in the inventory",
    "nothing to do; docs/probe.md says how to add a fact",
    "Holmes, docs/probe.md",
)
NO_PERMISSION = RuleText(
    "PROBE-NO-PERMISSION",
    "I",
    "a tool says that only root may see this",
    "facts that only root may read are unknown, and the rules that need them are silent",
    "probe as root, or record these tools with sudo",
    "lspci(8) (capabilities need root), dmesg(1) (kernel.dmesg_restrict)",
)
TOOL_FAILED = RuleText(
    "PROBE-TOOL-FAILED",
    "W",
    "a tool ended with an error or died half way",
    "the part that could be read is kept; the rest is unknown",
    "go by its message: an RDMA tool that fails or dies is most often older than the kernel's driver (update rdma-core "
    "and infiniband-diags together with it), nvidia-smi with some GPUs left has one that does not answer "
    "(`dmesg | grep -i xid`)",
    "Azure/azhpc-images#213; leptonai/gpud PR 752",
)
TRUNCATED = RuleText(
    "PROBE-TRUNCATED",
    "W",
    "an answer was cut off, or a tool did not end in time",
    "the part that could be read is kept; the rest is unknown",
    "run the tool on the host by hand: if it hangs, a device often hangs",
    "linux-rdma/rdma-core PR 847",
)
VALUE_IMPOSSIBLE = RuleText(
    "PROBE-VALUE-IMPOSSIBLE",
    "W",
    "a tool's answer has a value out of bounds, or digits of another script",
    "these values count as unknown; others in the same output may be wrong too",
    "run the tool again by hand, or correct the recording",
    "Holmes, prober/asking (bounds of what hardware can be)",
)
HOSTS_MIXED = RuleText(
    "PROBE-HOSTS-MIXED",
    "W",
    "an output has lines of several hosts, as parallel shells print them, but none has this host's name",
    "it is unknown which lines are this host's, so none is read",
    "name the recording's folder as the parallel shell names the host",
    "pdsh(1), clush(1) (the host's name before each line)",
)
TRUNK_UNKNOWN = RuleText(
    "NET-TRUNK-UNKNOWN",
    "W",
    "`trunks:` in hosts.yaml names a cluster that was not found",
    "the plan ignores this trunk",
    "use the names of the clusters found, or pin their hosts with `cluster:` in hosts.yaml",
    "Holmes, docs/probe.md (trunks)",
)
TRUNK_LOW = RuleText(
    "NET-TRUNK-LOW",
    "W",
    "a measured trunk carries less than 80 % of what hosts.yaml states",
    "the plan uses the stated rate; traffic between these clusters takes longer",
    "find other traffic on this path; correct `trunks:` in hosts.yaml, or remove it to use the measured rate",
    "Holmes, docs/probe.md (trunks)",
)
TUNNEL_NOT_MEASURED = RuleText(
    "NET-TUNNEL-NOT-MEASURED",
    "W",
    "hosts.yaml asks for WireGuard between clusters, and `--links` could make no tunnel between two hosts, or nothing "
    "passed through it",
    "the plan goes by `tunnel_gbps`, by what other hosts encrypt, or by the network's rate where neither is known; a "
    "launch needs the same tools, rights and ports, and is refused without",
    "do what the finding says; where nothing passed, open UDP port 51820 and those after it between all hosts",
    "Holmes, docs/security.md (encryption between clusters); wg(8)",
)
TCP_LOW = RuleText(
    "NET-BW-LOW",
    "W",
    "TCP between two hosts stays below 70 % of the slower interface's rate, and of the tool's own limit",
    "traffic over this network, such as activations between clusters, takes longer than their rate says",
    "look at MTU, duplex and drops on both interfaces, and at what else uses the way; "
    "the plan goes by the measured value",
    "IBM/autopilot, iperf check; " + FIELD,
)
RDMA_LOW = RuleText(
    "RDMA-BW-LOW",
    "W",
    "ib_write_bw between two rails stays below 90 % of the slower rail's rate",
    "all-reduce and all-gather inside the cluster run at this rate, not the port's",
    "compare PCIe width and speed, ACS and the cable of both HCAs",
    "Azure/azurehpc-health-checks (380 of 400 Gbit/s); NCCL user guide, networking troubleshooting (ib_write_bw)",
)
GPU_RDMA_LOW = RuleText(
    "RDMA-GPU-BW-LOW",
    "W",
    "ib_write_bw from GPU memory stays below 80 % of the same way from host memory",
    "NCCL's GPUDirect RDMA runs at this rate",
    "look at PCI-ACS-ON-PATH, PCI-IOMMU-ON, TOPO-FAR-NIC and GDR-NO-PEERMEM of both hosts",
    "NCCL user guide, networking troubleshooting (compare host-memory with GPU-memory results)",
)
PATH_MTU = RuleText(
    "NET-PATH-MTU",
    "W",
    "packets of the MTU of both ends' netdevs are lost between two hosts, and small ones are not",
    "TCP hangs at its first large message where routers do not say so, and RDMA with the larger MTU does too",
    "set the switch ports and all on the way to the hosts' MTU plus headers (9216 for 9000), or `ip link set NETDEV "
    "mtu 1500` at both ends; overlays and VLANs take up to 50 bytes",
    "Linux, Documentation/networking/ip-sysctl.rst (ip_no_pmtu_disc); ping(8) (-M do)",
)
PORT_CLOSED = RuleText(
    "NET-PORT-CLOSED",
    "F",
    "a connection between two hosts to a free port was refused or filtered",
    "this link was not measured; NCCL and Gloo meet here",
    "open the ports of `net.ipv4.ip_local_port_range` between these hosts",
    "NCCL user guide, networking troubleshooting (IP ports)",
)

TEXTS = tuple(text for text in vars().copy().values() if isinstance(text, RuleText))

RULE_OF_ERROR: Mapping[HostErrorKind, str] = {
    "unreachable": UNREACHABLE.id,
    "key unknown": KEY_UNKNOWN.id,
    "key changed": KEY_CHANGED.id,
    "refused login": NO_LOGIN.id,
    "refused session": TOOL_FAILED.id,
    "no answer": NO_ANSWER.id,
    "timed out": TRUNCATED.id,
    "too much": TRUNCATED.id,
}
"""Nothing is written on a probed host, so "files" has no rule."""
