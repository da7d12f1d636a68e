"""Puts the stub tools and the recorded outputs they replay on a host."""

import shutil
from pathlib import Path

from tests.testbed.bed_layout import BedHost

RECORDINGS = Path(__file__).parent / "recordings"
STUBS = Path(__file__).parent / "stubs"
STUB_NAMES = ("ibstat", "ibdev2netdev", "nvidia-smi", "ethtool", "sh")


def install_tools(host: BedHost, fast_mbps: int, slow_mbps: int) -> None:
    """Fills the host's `bin` with the stub tools and its `replies` with what they print."""
    replies = host.folder / "replies"
    replies.mkdir()
    host.tools.mkdir()
    for name in STUB_NAMES:
        shutil.copyfile(STUBS / name, host.tools / name)
        (host.tools / name).chmod(0o755)
    shutil.copyfile(STUBS / "nvidia_smi_select.awk", replies / "nvidia_smi_select.awk")
    for recording in RECORDINGS.glob("nvidia_smi_*.txt"):
        shutil.copyfile(recording, replies / recording.name)
    for tool in ("ibstat", "ibdev2netdev"):
        shutil.copyfile(RECORDINGS / f"{tool}_cluster_{host.cluster.lower()}.txt", replies / f"{tool}.txt")
    for interface, rate_mbps in ((host.fast_interface, fast_mbps), (host.slow_interface, slow_mbps)):
        (replies / f"ethtool_{interface}.txt").write_text(ethtool_reply(interface, rate_mbps))


def ethtool_reply(interface: str, rate_mbps: int) -> str:
    """The recorded `ethtool` output with the bed's own interface and rate in it."""
    recorded = (RECORDINGS / "ethtool_enp1s0.txt").read_text()
    return recorded.replace("enp1s0", interface).replace("Speed: 40000Mb/s", f"Speed: {rate_mbps}Mb/s")
