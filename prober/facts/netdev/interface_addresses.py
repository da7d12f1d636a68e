"""IPv4 addresses of interfaces on hosts without `ip`, read from the kernel by the host's Python."""

from __future__ import annotations

import shlex

from holmes_core.records.access import Access
from prober.asking.commands import Command, in_root

TOOL = "interface-addresses"
# Prints the form of `ip -j addr show`, with the first address of each interface. Source of numbers: linux/sockios.h
# (SIOCGIF...) and linux/if.h (IFF_UP 1, IFF_LOOPBACK 8, IFF_RUNNING 64).
_ASK = """
import fcntl, json, socket, struct
found = []
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    for _, name in socket.if_nameindex():
        def ask(code):
            try:
                return fcntl.ioctl(asked, code, struct.pack("256s", name.encode()))[16:]
            except OSError:
                return None
        flags, mtu, address, mask = ask(0x8913), ask(0x8921), ask(0x8915), ask(0x891B)
        bits = struct.unpack("H", flags[:2])[0] if flags else 0
        words = [word for bit, word in ((1, "UP"), (8, "LOOPBACK"), (64, "LOWER_UP")) if bits & bit]
        entry = {"ifname": name, "flags": words + ["NO-CARRIER"] * (bits & 65 == 1), "addr_info": []}
        if mtu:
            entry["mtu"] = struct.unpack("i", mtu[:4])[0]
        if bits & 8:
            entry["link_type"] = "loopback"
        if address and mask:
            length = bin(int.from_bytes(mask[4:8], "big")).count("1")
            local = socket.inet_ntoa(address[4:8])
            entry["addr_info"].append({"family": "inet", "local": local, "prefixlen": length})
        found.append(entry)
print(json.dumps(found))
"""


def addresses_command(access: Access) -> Command:
    """Return the command, which runs if `ip` before it has failed."""
    shell = f"{access.python_word} -c {shlex.quote(f'exec({_ASK!r})')}"
    return Command(in_root(shell), limited=True, when="case $code in 0) false;; esac", shown=TOOL)
