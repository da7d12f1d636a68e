"""The network, devices and shape of a run, derived from the facts of its logs. None is not known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prober.nccl_logs.log_facts import LogFacts, NcclProcess, ProcessKey
from prober.nccl_logs.nccl_lines import Evidence

RDMA = ("IB", "RoCE", "EFA")
MAX_GPUS_OF_HOST = 16
_FABRIC_MODULE = re.compile(r"(IB|IBext\w*)$")  # NCCL's own, and HPC-X's
_OFI_MODULE = re.compile(r"(AWS )?Libfabric$|^OFI")
_PLAIN_NAME = re.compile(r"[A-Za-z][\w.-]*$")
_ZONE = re.compile(r"%([\w.-]+)$")
_DEVICE_WITH_NUMBER = re.compile(r"[A-Za-z]\w*\d")


@dataclass(frozen=True)
class RunFacts:
    """The shape of a run. `direct_hosts` have channels with GPUDirect RDMA, `plain_hosts` processes that lack it."""

    network: str | None
    interfaces: tuple[str, ...]
    hcas: tuple[str, ...]
    gdr: bool | None
    num_ranks: int | None
    num_nodes: int | None
    versions: tuple[str, ...]
    hosts: tuple[str, ...]
    direct_hosts: tuple[str, ...]
    plain_hosts: tuple[str, ...]
    leaves_hosts: bool  # it has a channel over a network, or a communicator of several hosts
    uses_network: bool | None  # for channels; None if all known ones are inside a host and no line counts the hosts

    @property
    def is_one_host(self) -> bool:
        """True if the log shows that all ranks of all communicators are on one host."""
        return self.num_nodes == 1 and not self.leaves_hosts


def run_facts(facts: LogFacts) -> RunFacts:
    """Derive the shape of a run from the facts of its logs."""
    network = _network(facts)
    names = host_names(facts)
    direct = {names[key] for key, process in facts.processes.items() if process.direct}
    plain = {names[key] for key in plain_processes(facts, names)}
    largest = facts.largest
    ring = facts.first("ring")
    hosts = {name for name in names.values() if name}
    leaves_hosts = bool(direct or plain) or any((each.num_nodes or 1) > 1 for each in facts.communicators.values())
    inside = {way for process in facts.processes.values() for way in process.inside}
    several = leaves_hosts or len(hosts) > 1 or (largest is not None and largest.num_ranks > MAX_GPUS_OF_HOST)
    return RunFacts(
        network=network,
        interfaces=tuple(dict.fromkeys(_interfaces(facts))),
        hcas=tuple(dict.fromkeys(_hcas(facts))),
        gdr=_gdr(facts, network, direct, plain),
        num_ranks=largest.num_ranks if largest else int(ring.values["ranks"]) if ring else None,
        num_nodes=_num_nodes(facts, names),
        versions=tuple(sorted(facts.versions, key=lambda version: [int(part) for part in version.split(".")])),
        hosts=tuple(sorted(hosts)),
        direct_hosts=tuple(sorted(direct)),
        plain_hosts=tuple(sorted(plain)),
        leaves_hosts=leaves_hosts,
        uses_network=bool(direct or plain) or ("MNNVL" not in inside and (several or not inside or None)),
    )


def host_names(facts: LogFacts) -> dict[ProcessKey, str]:
    """Return the host of each process. Hosts with the same name are distinguished by their bootstrap addresses."""
    addresses: dict[str, set[str]] = {}
    for process in facts.processes.values():
        addresses.setdefault(process.host, set()).update({process.address} - {""})
    return {
        key: f"{process.host} ({own})" if len(addresses[process.host]) > 1 and process.host and own else process.host
        for key, process in facts.processes.items()
        for own in (process.address,)
    }


def network_of(process: NcclProcess) -> str | None:
    """Return the network of one process by the module it chose, or None if no line names it."""
    channels = Counter(module for module, _ in (*process.direct, *process.plain))
    module = list(process.networks)[-1] if process.networks else next(iter(channels), None)
    if module is None:
        return None
    if module == "Socket":
        return "Socket"
    if _FABRIC_MODULE.match(module):
        return _link(process) or "IB"
    return f"plugin:{module}"


def _link(process: NcclProcess) -> str | None:
    links = Counter(device.link for device in process.devices)
    return links.most_common(1)[0][0] if links else None


def _network(facts: LogFacts) -> str | None:
    """Return the network of most processes, or else the network that devices, errors and missing devices imply."""
    chosen = Counter(filter(None, map(network_of, facts.processes.values())))
    links = Counter(device.link for process in facts.processes.values() for device in process.devices)
    if chosen:
        network: str | None = next((name for name, _ in chosen.most_common() if name != "Socket"), "Socket")
        if network == "IB" and links:
            return links.most_common(1)[0][0]
        if network == "IB" and _is_ethernet(facts):
            return "RoCE"
        provider = facts.first("ofi-provider")
        if network and network.startswith("plugin:") and _OFI_MODULE.search(network.removeprefix("plugin:")):
            return "EFA" if provider is None or provider.values["provider"].startswith("efa") else network
        return network
    if plugin := next((sign.removeprefix("offers-") for sign in facts.signs if sign.startswith("offers-")), None):
        return plugin if plugin == "Socket" else f"plugin:{plugin}"
    if any(process.gdr_of_hcas for process in facts.processes.values()) and not links:
        return "IB"
    if links:
        return links.most_common(1)[0][0]
    return _implied(facts)


def _is_ethernet(facts: LogFacts) -> bool:
    """Return True if an error has a GID, which NCCL prints only for Ethernet, or a device is named roce."""
    if any(name.startswith("roce") for process in facts.processes.values() for name in process.gdr_of_hcas):
        return True
    errors = (*facts.signs.get("completion", ()), *facts.signs.get("modify-qp", ()))
    return any(sighting.values.get("local", "N/A") != "N/A" for sighting in errors)


def _implied(facts: LogFacts) -> str | None:
    if _is_ethernet(facts):
        return "RoCE"
    if completion := facts.first("completion"):
        zone = _ZONE.search(completion.values.get("peer", ""))
        return "IB" if zone is None or zone[1].startswith("ib") else "RoCE"
    no_rdma = facts.first("no-verbs", "no-device") or facts.setting("NCCL_IB_DISABLE", "1")
    return "Socket" if no_rdma and not facts.first("no-network", "plugin-loaded") else None


def plain_processes(facts: LogFacts, names: dict[ProcessKey, str]) -> list[ProcessKey]:
    """Return processes with channels that lack GPUDirect RDMA and would have it on a sound host.

    A process that only sends without it is excused if others of its host only receive with it, as GPUs without NVLink
    do.
    """
    direct = {names[key] for key, process in facts.processes.items() if process.direct}
    sending = {names[key] for key, process in facts.processes.items() if process.sends_direct}
    lacking = [(key, process) for key, process in facts.processes.items() if process.plain]
    excused = {key for key, each in lacking if each.only_sends_plain and (each.direct or names[key] not in sending)}
    return [key for key, _ in lacking if key not in excused or names[key] not in direct]


def _gdr(facts: LogFacts, network: str | None, direct: set[str], plain: set[str]) -> bool | None:
    """Return True if no process with channels lacks GPUDirect RDMA, or None if that is not known."""
    if network and network.startswith("plugin:GPUDirectTCPX") and not direct:
        return None  # its channels never say GDRDMA
    if direct or plain:
        return not plain
    if network == "Socket" or facts.first("ofi-no-gdr"):
        return False
    hcas = [enabled for process in facts.processes.values() for enabled in process.gdr_of_hcas.values()]
    pairs = [enabled for process in facts.processes.values() for enabled in process.gdr_of_pairs.values()]
    if hcas and not any(hcas):
        return False
    return True if facts.first("ring-gdr") else any(pairs) if pairs else None


def _interfaces(facts: LogFacts) -> Iterator[str]:
    seen = False
    for process in facts.processes.values():
        for name in (*process.interfaces, *process.out_of_band, *process.sockets):
            seen = True
            yield name
    for sighting in facts.signs.get("completion", ()):
        if zone := _ZONE.search(sighting.values.get("peer", "")):
            seen = True
            yield zone[1]
    setting = facts.setting("NCCL_SOCKET_IFNAME")
    if setting and not seen and not setting.value.startswith("^"):
        for name in setting.value.lstrip("=").split(","):
            if _PLAIN_NAME.match(name):
                yield name


def _hcas(facts: LogFacts) -> Iterator[str]:
    processes = facts.processes.values()
    names = [device.name for process in processes for device in process.devices]
    names = names or [name for process in processes for name in process.gdr_of_hcas]
    signs = [*facts.signs.get("completion", ()), *facts.signs.get("modify-qp", ())]
    yield from names or [
        sighting.values["hca"] for sighting in signs if _DEVICE_WITH_NUMBER.match(sighting.values.get("hca", ""))
    ]


def _num_nodes(facts: LogFacts, names: dict[tuple[str, str, str], str]) -> int | None:
    """Return NCCL's count, or else the number of hosts if all ranks are in the log."""
    largest = facts.largest
    if largest and largest.num_nodes is not None:
        return largest.num_nodes
    if largest and len(largest.ranks) == largest.num_ranks and all(key[0] for key in largest.ranks.values()):
        return len({names[key] for key in largest.ranks.values() if key in names})
    return (
        1 if largest and len(facts.inside_ranks) == largest.num_ranks and len(set(names.values()) - {""}) == 1 else None
    )


def evidence_of_network(facts: LogFacts) -> Evidence | None:
    """Return the first line that names the network."""
    lines = [line for process in facts.processes.values() for line in process.networks.values()]
    lines += [line for each in facts.processes.values() for line in (*each.plain.values(), *each.direct.values())]
    lines += [process.devices_line for process in facts.processes.values() if process.devices_line]
    return lines[0] if lines else None
