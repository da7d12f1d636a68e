"""Hosts of one rail and one NIC to everywhere, for tests of clusters."""

from __future__ import annotations

from holmes_core.records.access import Access
from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import Host, Software


def netdev_of_10_gbps(name: str, *addresses: str, speed: float | None = 1.25e9, up: bool = True) -> Netdev:
    return Netdev(name=name, up=up, mtu=1500, addresses=addresses, speed_bytes_per_s=speed)


def nic(device: str, kind: str, rate: float = 200, state: str = "Active", **facts: object) -> Nic:
    data = {"device": device, "port": 1, "kind": kind, "rate_gbps": rate, "state": state, "phys_state": "LinkUp"}
    rest = {"netdev": None, "subnet_prefix": None, "sm_lid": None, "why": ""}
    return Nic.model_validate({**rest, **data, "usable_by_nccl_ib": state == "Active", **facts})


def host_in_cluster(name: str, *netdevs: Netdev, nics: tuple[Nic, ...] = (), **facts: object) -> Host:
    software = Software(python="3.11.7", torch="2.13.0")
    data = {"name": name, "access": Access(), "reachable": True, "netdevs": netdevs, "nics": nics, "software": software}
    data["python_asked"] = True
    return Host.model_validate({**data, **facts})


def infiniband_host(name: str, number: int, sm_lid: int = 1, network: int = 1) -> Host:
    rail = nic("mlx5_0", "InfiniBand", netdev="ib0", sm_lid=sm_lid)
    return host_in_cluster(
        name,
        netdev_of_10_gbps("ib0", f"10.{network}.0.{number}/24"),
        netdev_of_10_gbps("eth0", f"10.9.0.{number}/24"),
        nics=(rail,),
    )


def roce_host_at(name: str, number: int, network: int = 2) -> Host:
    rail = nic("mlx5_0", "RoCE", netdev="ens6")
    return host_in_cluster(
        name,
        netdev_of_10_gbps("ens6", f"10.{network}.0.{number}/24"),
        netdev_of_10_gbps("eno1", f"10.9.0.{number}/24"),
        nics=(rail,),
    )
