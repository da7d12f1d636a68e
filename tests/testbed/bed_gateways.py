"""Sites behind gateways that masquerade: all hosts of the bed but the last, which is open to everybody.

Nothing from outside reaches a host of a site, except answers, and the controller by SSH as through a site's VPN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.testbed.bed_layout import CONTROLLER_ADDRESS, SLOW_NETWORK, BedHost, Wire, host_namespace
from tests.testbed.bed_process import run_tool

SITE_NETWORKS = {"A": "192.168.1", "B": "192.168.2"}
RULES = f"""
table ip site {{
  chain out {{ type nat hook postrouting priority srcnat; oifname "wan" masquerade; }}
  chain through {{
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname "lan" accept
    ip saddr {CONTROLLER_ADDRESS} tcp dport 22 accept
  }}
}}
"""


def is_in_site(host: BedHost) -> bool:
    """True for a host behind a gateway."""
    return not host.slow_address.startswith(SLOW_NETWORK)


def gateway_namespace(suffix: str, cluster: str) -> str:
    """The namespace of a site's gateway."""
    return host_namespace(suffix, f"gw-{cluster.lower()}")


def gateway_wires(suffix: str) -> Iterator[Wire]:
    """The cables of the gateways, each to its site and to the network of all."""
    for number, (cluster, network) in enumerate(SITE_NETWORKS.items(), start=101):
        name = gateway_namespace(suffix, cluster)
        yield Wire(name, "lan", f"{network}.1", f"site-{cluster.lower()}", f"gw-{cluster.lower()}-lan", None)
        yield Wire(name, "wan", f"{SLOW_NETWORK}.{number}", "slow", f"gw-{cluster.lower()}-wan", None)


def open_gateways(suffix: str, controller: str, hosts: Sequence[BedHost]) -> None:
    """Start masquerading, and give every host and the controller their routes."""
    for number, (cluster, network) in enumerate(SITE_NETWORKS.items(), start=101):
        inside = ["ip", "netns", "exec", gateway_namespace(suffix, cluster)]
        run_tool([*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
        run_tool([*inside, "nft", "-f", "-"], [RULES])
        run_tool(["ip", "-n", controller, "route", "add", f"{network}.0/24", "via", f"{SLOW_NETWORK}.{number}"])
    for host in hosts:
        gateway = f"{SITE_NETWORKS[host.cluster]}.1" if is_in_site(host) else CONTROLLER_ADDRESS
        run_tool(["ip", "-n", host.namespace, "route", "add", "default", "via", gateway])
