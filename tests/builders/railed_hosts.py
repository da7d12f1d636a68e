"""Hosts with rails, storage and front end, made for a test: what a machine of that kind shows."""

from __future__ import annotations

from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.devices import Gid, Gpu, Netdev, Nic, PciDevice, Route
from holmes_core.records.inventory import Host


def infiniband_port(device: str, rate: float = 400, **facts: Any) -> Nic:
    """An Active InfiniBand port of a ConnectX-7."""
    known = {"sm_lid": 1, "subnet_prefix": "fe80:0000:0000:0000", "hca_type": "MT4129"}
    return _port(device, "InfiniBand", rate, {**known, **facts})


def roce_port(device: str, netdev: str | None, rate: float = 400, **facts: Any) -> Nic:
    """An Active RoCE port of a ConnectX-7."""
    return _port(device, "RoCE", rate, {"netdev": netdev, "hca_type": "MT4129", **facts})


def _port(device: str, kind: str, rate: float | None, facts: dict[str, Any]) -> Nic:
    base = {"device": device, "port": 1, "kind": kind, "rate_gbps": rate, "state": "Active", "phys_state": "LinkUp"}
    base |= {"netdev": None, "subnet_prefix": None, "sm_lid": None, "usable_by_nccl_ib": True, "why": "ACTIVE"}
    return Nic.model_validate({**base, **facts})


def netdev_with(name: str, *addresses: str, **facts: Any) -> Netdev:
    """A netdev that is up."""
    base = {"name": name, "up": True, "mtu": 9000, "speed_bytes_per_s": 50e9}
    v4 = tuple(address for address in addresses if ":" not in address)
    v6 = tuple(address for address in addresses if ":" in address)
    return Netdev.model_validate({**base, "addresses": v4, "ipv6_addresses": v6, **facts})


def gpus_beside(*nearest: tuple[str, ...], path: str = "PIX") -> tuple[Gpu, ...]:
    """GPUs, each with the names of the RDMA devices that `topo -m` shows nearest to it."""
    base = {"name": "H100", "uuid": None, "memory_bytes": None, "pci_address": None}
    return tuple(
        Gpu.model_validate({**base, "index": index, "nearest_nics": names, "nearest_path": path if names else None})
        for index, names in enumerate(nearest)
    )


def host(name: str = "a", **facts: Any) -> Host:
    """A reachable host."""
    return Host.model_validate({"name": name, "access": Access(), "reachable": True, **facts})


def gid(index: int, ipv4: str, netdev: str) -> Gid:
    """A RoCE v2 entry of a GID table."""
    return Gid(index=index, gid=f"::ffff:{ipv4}", type="RoCE v2", ipv4=ipv4, netdev=netdev)


def route(prefix: str, netdev: str, table: str | None = None) -> Route:
    """A route of the main table, or of another."""
    return Route(prefix=prefix, netdev=netdev, table=table)


def switch(number: int, *devices: tuple[str, str], numa: int = 0) -> tuple[PciDevice, ...]:
    """A PCI switch with (what, address) below its ports."""
    root, top = f"0000:{number:02x}:00.0", f"0000:{number:02x}:01.0"
    found = [PciDevice(address=root, what="bridge"), PciDevice(address=top, what="bridge", parent=root)]
    for port, (what, address) in enumerate(devices):
        below = f"0000:{number:02x}:02.{port}"
        found.append(PciDevice(address=below, what="bridge", parent=top))
        found.append(PciDevice.model_validate({"address": address, "what": what, "parent": below, "numa_node": numa}))
    return tuple(found)
