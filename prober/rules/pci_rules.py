"""Rules on PCI Express: links below the rate of card and slot, and settings that slow them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holmes_core.records.devices import PciDevice, PciLink
from holmes_core.records.inventory import Host
from prober.facts.machine.pci_paths import bridges_above
from prober.rails.choose_rails import rails_of
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, below

LARGE_READS_FROM_GBPS = 200
MIN_LANES = 8
_PASSTHROUGH = re.compile(r"\biommu=pt\b|\biommu\.passthrough=(1|on|y)\b")
_TRANSLATED = re.compile(r"\b(intel_iommu|amd_iommu)=on\b|\biommu=(force|nopt)\b|\biommu\.passthrough=(0|off|n)\b")


@dataclass(frozen=True)
class _SlowLink:
    """A link below its possible rate. `slot_known`: the maximum of the other end is known."""

    device: str  # its PCI address, or an RDMA device without one
    evidence: str
    slot_known: bool


def _lack(link: PciLink, slot: PciLink | None, speed_counts: bool) -> str | None:
    """Return the shortfall of a link from the rate of both its ends, or None if there is none or it is not known."""
    width, speed = _both(link.max_width, slot, "max_width"), _both(link.max_speed_gts, slot, "max_speed_gts")
    if link.width and width and link.width < width:
        return f"width x{link.width} of x{width:g}"
    if speed_counts and link.speed_gts and speed and link.speed_gts < speed:
        return f"{link.speed_gts:g} GT/s of {speed:g}"
    return None


def _both(card: float | None, slot: PciLink | None, fact: str) -> float | None:
    other = getattr(slot, fact) if slot is not None else None
    return card if other is None or card is None else min(card, other)


def _lacks(host: Host) -> Iterable[_SlowLink]:
    """Yield slow links. Idle GPUs lower their speed to save power, and small on-board NICs carry no job."""
    known = {device.address: device for device in host.pci}
    for device in host.pci:
        if device.what != "bridge" and (device.link.max_width or 0) >= MIN_LANES:
            slot = known[device.parent].link if device.parent in known else None
            lack = _lack(device.link, slot, speed_counts=device.what == "nic")
            if lack:
                slot_known = slot is not None and slot.max_width is not None and slot.max_speed_gts is not None
                yield _SlowLink(device.address, f"{device.what} {device.address}: {lack}", slot_known)
    for nic in host.nics:
        lack = _lack(nic.pci, None, speed_counts=True)
        if lack and nic.pci_address not in known:
            where = nic.pci_address or "address not known"
            yield _SlowLink(nic.pci_address or nic.device, f"{nic.device} ({where}): {lack}", False)


def _carries_the_job(host: Host) -> set[str]:
    """Return the PCI addresses of GPUs and rails."""
    gpus = {device.address for device in host.pci if device.what == "gpu"}
    return gpus | {nic.pci_address or nic.device for nic in rails_of(host)}


def _job_link_degraded(host: Host) -> Evidence:
    job = _carries_the_job(host)
    yield from (lack.evidence for lack in _lacks(host) if lack.slot_known and lack.device in job)


def _link_may_be_degraded(host: Host) -> Evidence:
    job = _carries_the_job(host)
    for lack in _lacks(host):
        if not lack.slot_known:
            yield f"{lack.evidence}; what the slot can do is not known"
        elif lack.device not in job:
            yield f"{lack.evidence}; it is no rail"
    yield from _uplinks_degraded(host)


def _uplinks_degraded(host: Host) -> Evidence:
    """Yield switches with a narrow link to the port above, shared by all their devices. Idle links lower the speed."""
    known = {device.address: device for device in host.pci}
    ends = [device for device in host.pci if device.what != "bridge"]
    uplinks = {
        (above[at], above[at + 1])
        for above in (bridges_above(known, device.address) for device in ends)
        for at in range(1, len(above) - 1, 2)
    }
    for bridge, upper in sorted(uplinks):
        if bridge in known and upper in known:
            lack = _lack(known[bridge].link, known[upper].link, speed_counts=False)
            if lack:
                yield f"switch {bridge}: {lack} towards {upper}"


def _small_reads(host: Host) -> Evidence:
    fast = {nic.pci_address for nic in host.nics if (nic.rate_gbps or 0) >= LARGE_READS_FROM_GBPS and nic.pci_address}
    for device in host.pci:
        size = device.max_read_request_bytes
        if device.address in fast and size is not None and size <= 512:
            seen = f"{device.address}: largest read request {size} bytes"
            command = f"setpci -s {device.address} CAP_EXP+8.w"
            yield EvidenceLine(
                seen, f"if the vendor says so: `{command}` shows the register, `{command}=5000:7000` sets 4096 bytes"
            )


def _strict_ordering(host: Host) -> Evidence:
    rails = {nic.pci_address: nic.device for nic in rails_of(host) if nic.pci_address}
    strict = [device for device in host.pci if device.relaxed_ordering is False and device.address in rails]
    if strict:
        yield f"{', '.join(rails[device.address] for device in strict)}: RlxdOrd- in the device control register"


def _acs_on_path(host: Host) -> Evidence:
    """Yield bridges above both a GPU and a NIC at which ACS sends their traffic to the root and back."""
    tree = {device.address: device for device in host.pci}
    above: dict[str, set[str]] = {"gpu": set(), "nic": set()}
    for device in host.pci:
        if device.what in above:
            above[device.what].update(bridges_above(tree, device.address))
    for address in sorted(above["gpu"] & above["nic"]):
        found = [d for d in host.pci if d.what == "bridge" and d.parent == address and d.acs_redirects]
        if found:
            listed = ", ".join(device.address for device in found)
            yield EvidenceLine(f"below {address}: ACS redirects at {listed}", _without_acs(host, found))


def _without_acs(host: Host, bridges: Sequence[PciDevice]) -> str:
    if host.virtual_machine:
        return "a virtual machine needs ACS: enable ATS in the network adapters"
    commands = " && ".join(f"setpci -s {bridge.address} ECAP_ACS+0x6.w=0000" for bridge in bridges)
    return f"`{commands}` as root, again after each boot; or switch off VT-d or ACS in the BIOS"


def _iommu(host: Host) -> Evidence:
    """Yield translation by the IOMMU, from the types of its groups or, if these are not known, the command line."""
    if not host.iommu_groups or host.virtual_machine is not False:
        return
    line, types = host.kernel_command_line or "", host.iommu_group_types
    translated = [kind for kind in types or () if kind.startswith("DMA")]
    if types is not None:
        if translated and "identity" not in types:
            yield f"{host.iommu_groups} IOMMU groups of type {', '.join(translated)}"
    elif _TRANSLATED.search(line) and not _PASSTHROUGH.search(line):
        yield f"{host.iommu_groups} IOMMU groups, and the kernel command line asks for translation"


def _flat_pci(host: Host) -> Evidence:
    """Yield GPUs in separate PCI domains, a sign of a hypervisor except on boards with Grace."""
    addresses = [gpu.pci_address for gpu in host.gpus if gpu.pci_address]
    domains = {address.split(":")[0] for address in addresses}
    grace = any(re.search(r"\bG[BH]\d{2,3}\b", gpu.name or "") for gpu in host.gpus)
    if len(addresses) > 1 and len(domains) == len(addresses) and not grace and host.virtual_machine is not False:
        yield f"every one of {len(addresses)} GPUs is in a PCI domain of its own"


def _narrower_than_peers(peers: Sequence[Host]) -> PeerEvidence:
    compared: tuple[tuple[str, Callable[[Host], float | None], str], ...] = (
        ("width of the GPUs", lambda host: _least(gpu.pci_width for gpu in host.gpus), "x{:g}"),
        ("width of the rails", lambda host: _least(nic.pci.width for nic in rails_of(host)), "x{:g}"),
        ("speed of the rails", lambda host: _least(nic.pci.speed_gts for nic in rails_of(host)), "{:g} GT/s"),
        (
            "speed that the bridges above allow",
            lambda host: _least(link.max_speed_gts for link in _above_the_job(host)),  # idle ones run slower
            "{:g} GT/s",
        ),
    )
    for what, value_of, form in compared:
        yield from below(peers, f"PCI Express {what}", value_of, form.format)


def _above_the_job(host: Host) -> Iterable[PciLink]:
    """Return the links of the bridges above GPUs and rails."""
    tree = {device.address: device for device in host.pci}
    above = {bridge for device in _carries_the_job(host) for bridge in bridges_above(tree, device)}
    return (device.link for device in host.pci if device.address in above)


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)


_RESEAT = "reseat the card; look at the slot's setting in the BIOS, at riser and cable"

HOST_RULES = (
    Rule(
        "PCI-RELAXED-ORDERING",
        "I",
        "the device control register of a rail's NIC forbids relaxed ordering",
        "writes to GPU memory wait for one another: less bandwidth, on AMD CPUs and in virtual machines most of all",
        "`mlxconfig -d DEVICE set PCI_WR_ORDERING=1` and a cold reset, and `Relaxed Ordering` in the BIOS; NCCL then "
        "uses it by itself",
        "NCCL user guide, environment variables (NCCL_IB_PCI_RELAXED_ORDERING); AMD EPYC tuning guides for InfiniBand",
        _strict_ordering,
    ),
    Rule(
        "PCI-LINK-DEGRADED",
        "F",
        "the link of a GPU (width) or a rail's NIC (width, speed) is below what card and slot both can do",
        "less bandwidth to the device, and all ranks wait for it",
        _RESEAT,
        "Linux, Documentation/ABI/testing/sysfs-bus-pci (current_link_speed, max_link_width); scitix/sichek",
        _job_link_degraded,
    ),
    Rule(
        "PCI-LINK-DEGRADED",
        "W",
        "a link is below the card's maximum and the slot's is not known, the card is no rail, or a switch's uplink is "
        "narrower than both its ends",
        "less bandwidth to the device, if its slot can do more",
        _RESEAT,
        "Linux, Documentation/ABI/testing/sysfs-bus-pci; scitix/sichek (whole path)",
        _link_may_be_degraded,
    ),
    Rule(
        "PCI-MPS-SMALL",
        "I",
        "a NIC of 200 Gbit/s or more limits read requests to 512 bytes or less",
        "less RDMA bandwidth",
        "set 4096 bytes by setpci, if the vendor recommends it",
        "PCI Express base specification, Device Control register; setpci(8)",
        _small_reads,
    ),
    Rule(
        "PCI-ACS-ON-PATH",
        "W",
        "a bridge between a GPU and a NIC redirects requests by ACS",
        "GPU to NIC traffic goes through the root complex, which is slow and can hang",
        "disable ACS on bare metal (`setpci -s BDF ECAP_ACS+0x6.w=0000` for each bridge); in a VM use ATS",
        "NCCL user guide, GPU troubleshooting (PCI Access Control Services)",
        _acs_on_path,
    ),
    Rule(
        "PCI-IOMMU-ON",
        "W",
        "the IOMMU of a machine on bare metal translates (groups of type DMA, none of type identity)",
        "every DMA is translated, and GPU to NIC traffic may go through the root complex",
        "`iommu.passthrough=1` on the kernel command line (on x86 `iommu=pt` does the same), then reboot",
        "Linux, Documentation/admin-guide/kernel-parameters.txt (iommu.passthrough) and "
        "Documentation/ABI/testing/sysfs-kernel-iommu_groups; NCCL user guide, GPU troubleshooting",
        _iommu,
    ),
    Rule(
        "TOPO-FLAT-PCI",
        "W",
        "in a virtual machine every GPU has its own PCI domain",
        "NCCL cannot see which NIC is nearest",
        "set NCCL_TOPO_FILE to the cloud's topology file for this machine",
        "NCCL user guide, GPU troubleshooting (topology detection) and environment variables (NCCL_TOPO_FILE)",
        _flat_pci,
    ),
)

PEER_RULES = (
    PeerRule(
        "PCI-LINK-DEGRADED",
        "W",
        "GPUs or rails of a host have a narrower or slower link than on most hosts of its cluster",
        "less bandwidth to the device, and all ranks wait for it",
        _RESEAT,
        "scitix/sichek; " + FIELD,
        _narrower_than_peers,
    ),
)
