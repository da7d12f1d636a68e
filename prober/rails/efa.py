"""AWS's EFA adapters as rails, which NCCL reaches only through aws-ofi-nccl."""

from __future__ import annotations

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host, OfiPlugin


def efa_plugin(host: Host) -> OfiPlugin | None:
    """Return the plugin that NCCL loads, or None if there is none or it is not known."""
    return next(iter(host.ofi_plugins or ()), None)


def efa_rails(host: Host) -> tuple[Nic, ...]:
    """Return the adapters that the plugin will find: not known to be down, and in libfabric's list if that is known."""
    if efa_plugin(host) is None:
        return ()
    listed = {domain.device for domain in host.libfabric or () if domain.provider == "efa"}
    return tuple(
        nic
        for nic in host.nics
        if nic.kind == "EFA" and nic.state in ("Active", None) and (host.libfabric is None or nic.device in listed)
    )
