"""Netdevs as ethtool shows them: the settings, whole or cut by grep, and the driver with -i."""

from __future__ import annotations

import re

from holmes_core.units import bytes_per_s_from_mbps
from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.netdev.partial_netdev import PartialNetdev, speed_bytes_per_s

_CARDS = "/sys/class/net/*/device"
_NETDEVS = "/sys/class/net/*"
_SKIPPED = "lo docker* veth* br-* cali* cni* virbr* bonding_masters"
SETTINGS = Command('ethtool "$n"', each=_NETDEVS, skip=_SKIPPED, limited=True)
DRIVER = Command('ethtool -i "$n"', each=_NETDEVS, skip=_SKIPPED, limited=True, when=f"has {_CARDS}")


def parse_ethtool(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Return the netdevs of an `ethtool` or `ethtool -i` answer."""
    if any(word in ("-i", "--driver") for word in output.words[1:]):
        return _driver(output)
    blocks = re.split(r"^Settings for (\S+):[ \t]*$", output.plain, flags=re.MULTILINE)
    if len(blocks) > 1:
        return tuple(_settings(name, text) for name, text in zip(blocks[1::2], blocks[2::2], strict=True))
    return _cut_by_grep(output)


def _settings(name: str, text: str) -> PartialNetdev:
    speed = re.search(r"^[ \t]*Speed:[ \t]*(\d{1,9})[ \t]*Mb/s", text, flags=re.MULTILINE)
    link = re.search(r"^[ \t]*Link detected:[ \t]*(yes|no)\b", text, flags=re.MULTILINE)
    modes = re.findall(r"\b(\d{1,7})base\w+/(?:Full|Half)", _supported(text))
    return PartialNetdev(
        name=name,
        speed_bytes_per_s=speed_bytes_per_s(float(speed.group(1))) if speed else None,
        max_speed_bytes_per_s=max((bytes_per_s_from_mbps(float(mode)) for mode in modes), default=None),
        link_detected=link.group(1) == "yes" if link else None,
        port_shown=True if "Supported ports:" in text and not re.search(r"Supported ports: \[\s*\]", text) else None,
    )


def _supported(text: str) -> str:
    """Return the part with the supported modes, or "" if it is cut off before its end."""
    match = re.search(r"Supported link modes:(.*?)\n[ \t]*Supported pause", text, flags=re.DOTALL)
    return match.group(1) if match else ""


def _cut_by_grep(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Read speed lines without interfaces. They belong to the interfaces of the command, if these are as many."""
    names = re.findall(r"\bethtool\s+([^\s|;&<>-][^\s|;&<>]*)", output.command)
    speeds = re.findall(r"^[ \t]*Speed:[ \t]*(?:(\d{1,9})Mb/s|Unknown!)", output.plain, flags=re.MULTILINE)
    if len(names) != len(speeds):
        return ()
    known = [(name, float(mbps)) for name, mbps in zip(names, speeds, strict=True) if mbps]
    return tuple(PartialNetdev(name=name, speed_bytes_per_s=speed_bytes_per_s(mbps)) for name, mbps in known)


def _firmware(text: str) -> str | None:
    """Return the version in `22.36.1010 (MT_0000000359)` or `227.0.131.0/pkg 227.1.111.0`."""
    return None if text == "N/A" else text.partition(" ")[0].removesuffix("/pkg") or None


def _driver(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Read one netdev. Its name is empty if the command does not have it, and is later found by the PCI address."""
    names = [word for word in output.words[1:] if not word.startswith(("-", "<")) and not word.endswith(">")]
    found = re.findall(r"^([a-z-]+):(.*)\n", output.plain, flags=re.MULTILINE)
    lines = {name: value.strip(" ") for name, value in found}
    bus = lines.get("bus-info", "").lower()
    netdev = PartialNetdev(
        name=names[-1] if names else "",
        driver=lines.get("driver") or None,
        firmware=_firmware(lines.get("firmware-version", "")),
        pci_address=bus if re.fullmatch(r"[0-9a-f]{4,8}:\w\w:\w\w\.\d", bus) else None,
        kind="ipoib" if "[ib_ipoib]" in lines.get("driver", "") else None,
    )
    return (netdev,) if netdev.driver else ()
