"""GPUs, NICs and the bridges above them, from lspci and /sys/bus/pci, and the NICs nearest to each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Literal

from holmes_core.records.devices import PciDevice, PciLink
from prober.asking.commands import Command
from prober.asking.merge import by_key, filled
from prober.asking.numbers import number
from prober.asking.pci_values import NVSWITCH_MARK, normal_address, numa_node, pci_link, pci_path
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree
from prober.facts.machine.pci_paths import bridges_above, path_between

_ROOT = "/sys/bus/pci/devices"
_FILES = [
    *("class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width", "max_link_speed"),
    "max_link_width",
]
_PICK = (
    f'list=; for d in {_ROOT}/*; do read -r c <"$d/class"; '
    'case $c in 0x0200*|0x0207*|0x0300*|0x0302*|0x0604*) list="$list $d";; esac; done; '
)
_WORTH = f"has /sys/class/infiniband/* || grep -qs 0x10de {_ROOT}/*/vendor"
SYSFS = Command(
    _PICK + "for d in $list; do for f in " + " ".join(_FILES) + '; do echo "$d/$f"; done; done | xargs -r grep -Hs .',
    when=_WORTH,
    shown=f"grep -Hs . {_ROOT}/*/[GPUs, NICs and bridges]",
)
PATHS = Command(_PICK + "ls -ld $list", when=_WORTH, shown=f"ls -ld {_ROOT}/*")
LSPCI = Command("lspci -Dnn", limited=True)
LSPCI_VVV = Command("lspci -Dvvv", limited=True, when=f'[ "$uid" = 0 ] && {{ {_WORTH}; }}')
# Without root it hides the facts that rules need, so the one line that shows this is enough.
LSPCI_DENIED = Command(
    "lspci -Dvvv | grep -m1 '<access denied>'", limited=True, when=f'[ "$uid" != 0 ] && {{ {_WORTH}; }}'
)

What = Literal["gpu", "nic", "bridge"]


@dataclass(frozen=True)
class PciFacts:
    """The facts of one source about a PCI device. `secondary_bus` is the bus below a bridge, `0000:19`."""

    address: str
    what: What | None = None
    nvidia: bool | None = None
    name: str | None = None
    device_id: str | None = None
    parent: str | None = None
    secondary_bus: str | None = None
    link: PciLink | None = None
    numa_node: int | None = None
    acs_redirects: bool | None = None
    max_read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    manages_switches: bool | None = None  # by its vital product data


_FIRST_LINE = re.compile(
    r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) ([^:\[]+?)(?: \[([0-9a-f]{4})\])?: (.+)$"
)


def parse_lspci(output: Recorded) -> tuple[PciFacts, ...]:
    """Return the devices of lspci, with or without -nn and -vvv."""
    devices: list[PciFacts] = []
    for line in output.lines:
        if match := _FIRST_LINE.match(line):
            devices.append(_from_first_line(*match.groups()))
        elif devices and line.startswith(("\t", " ")):
            devices[-1] = _with_line(devices[-1], line.strip())
    return tuple(devices)


def _from_first_line(address: str, kind: str, code: str | None, rest: str) -> PciFacts:
    nvidia = rest.startswith("NVIDIA")
    what: What | None = None
    if nvidia and (code in ("0300", "0302") or kind in ("3D controller", "VGA compatible controller")):
        what = "gpu"
    elif code in ("0200", "0207") or kind in ("Ethernet controller", "Infiniband controller"):
        what = "nic"
    elif code == "0604" or kind == "PCI bridge":
        what = "bridge"
    ids = re.search(r"\[([0-9a-f]{4}:[0-9a-f]{4})\]", rest)
    names = re.findall(r"\[([^\[\]]*)\]", rest.replace(ids.group(0), "") if ids else rest)
    return PciFacts(
        normal_address(address),
        what=what,
        nvidia=nvidia,
        name=names[0] if names else None,
        device_id=ids.group(1) if ids else None,
    )


def _with_line(device: PciFacts, text: str) -> PciFacts:
    if match := re.match(r"NUMA node: (\d{1,4})$", text):
        return replace(device, numa_node=int(match.group(1)))
    if match := re.match(r"Bus: primary=\w\w, secondary=(\w\w),", text):
        return replace(device, secondary_bus=f"{device.address.rpartition(':')[0].rpartition(':')[0]}:{match.group(1)}")
    if match := re.match(r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s[^,]*, Width x(\d{1,2})\b", text):
        return replace(device, link=_with_link(device.link or PciLink(), *match.groups()))
    if match := re.search(r"MaxReadReq (\d{1,5}) bytes", text):
        return replace(device, max_read_request_bytes=int(match.group(1)))
    if match := re.match(r"RlxdOrd([+-]) ", text):
        return replace(device, relaxed_ordering=match.group(1) == "+")
    if NVSWITCH_MARK in text:
        return replace(device, manages_switches=True)
    if text.startswith("ACSCtl:") and "CmpltRedir" in text:
        return replace(device, acs_redirects="ReqRedir+" in text or "CmpltRedir+" in text)
    return device


def _with_link(link: PciLink, which: str, speed: str, width: str) -> PciLink:
    if which == "Cap":
        return link.model_copy(update={"max_speed_gts": number(speed), "max_width": int(width) or None})
    return link.model_copy(update={"speed_gts": number(speed), "width": int(width) or None})


def parse_pci_sysfs(tree: Tree) -> tuple[PciFacts, ...]:
    """Return the devices below /sys/bus/pci/devices with a known class."""
    devices = []
    for match, code in tree.matching(rf"{_ROOT}/([0-9a-f:.]+)/class"):
        address = match.group(1)

        def value(file: str, address: str = address) -> str | None:
            return tree.value(f"{_ROOT}/{address}/{file}")

        path = pci_path(tree.links.get(f"{_ROOT}/{address}", ""))
        nvidia = value("vendor") == "0x10de"
        devices.append(
            PciFacts(
                address,
                what=_what(code, nvidia),
                nvidia=nvidia,
                parent=path[-2] if len(path) > 1 else None,
                link=pci_link(value),
                numa_node=numa_node(value("numa_node")),
            )
        )
    return tuple(devices)


def _what(code: str, nvidia: bool) -> What | None:
    if nvidia and code[:6] in ("0x0300", "0x0302"):
        return "gpu"
    return {"0x0200": "nic", "0x0207": "nic", "0x0604": "bridge"}.get(code[:6])  # type: ignore[return-value]


def merge_pci(sources: Sequence[tuple[PciFacts, ...]]) -> dict[str, PciFacts]:
    """Return one record for each address, with parents from bus numbers if no path is known. Earlier sources win."""
    known = by_key(chain.from_iterable(sources), attrgetter("address"), filled)
    below = {device.secondary_bus: device.address for device in known.values() if device.secondary_bus}
    return {
        address: device if device.parent else replace(device, parent=below.get(address.rpartition(":")[0]))
        for address, device in sorted(known.items())
    }


def pci_devices(known: Mapping[str, PciFacts]) -> tuple[PciDevice, ...]:
    """Return the GPUs, NICs and the bridges above them, in order of address."""
    wanted = {address for address, device in known.items() if device.what in ("gpu", "nic")}
    wanted |= {bridge for address in list(wanted) for bridge in bridges_above(known, address)}
    return tuple(_record(known[address]) for address in sorted(wanted) if address in known)


def _record(device: PciFacts) -> PciDevice:
    same = {name: getattr(device, name) for name in PciDevice.model_fields}
    return PciDevice(**same | {"what": device.what or "bridge", "link": device.link or PciLink()})


_NEARNESS = ("PIX", "PXB", "NODE", "SYS")


def nearest_nics(known: Mapping[str, PciFacts], gpu: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the path to the NICs nearest to a GPU, and the addresses of those with the widest PCI link.

    Return (None, ()) if the tree is not known.
    """
    nics = [device for device in known.values() if device.what == "nic"]
    above, node = bridges_above(known, gpu), known[gpu].numa_node if gpu in known else None
    paths = {nic.address: path_between(above, bridges_above(known, nic.address), (node, nic.numa_node)) for nic in nics}
    near = [name for name in _NEARNESS if name in paths.values()]
    if not near:
        return None, ()
    nearest = [nic for nic in nics if paths[nic.address] == near[0]]
    top = max(_bandwidth(nic.link) for nic in nearest)
    return near[0], tuple(nic.address for nic in nearest if _bandwidth(nic.link) == top)


def _bandwidth(link: PciLink | None) -> float:
    return (link.max_speed_gts or 0) * (link.max_width or 0) if link else 0


def gpus_of(known: Iterable[PciFacts]) -> list[PciFacts]:
    """Return the GPUs in order of address, which is the order of nvidia-smi."""
    return [device for device in known if device.what == "gpu"]
