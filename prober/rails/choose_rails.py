"""The choice of the rails among a host's RDMA ports, their numbers, and the reasons against other ports.

A port does not show if it serves GPUs, storage or the front end. Its network, its nearness to the GPUs, its rate and
the default route decide. `rails:` of hosts.yaml overrides them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from holmes_core.hosts.rail_pattern import named_by
from holmes_core.records.devices import Gpu, Nic
from holmes_core.records.inventory import Host
from prober.rails.efa import efa_rails
from prober.rails.nearness import BESIDE, Nearness, nearness_of, path_class, path_rank
from prober.rails.port_groups import PortGroup, best_group, fabric_of_port, near_part, port_groups, ties
from prober.rails.port_networks import default_route_netdevs, has_address, is_fast_path, netdevs_of

RAIL_KINDS = ("InfiniBand", "RoCE")
STATED = "named by `rails:` of hosts.yaml"
NOT_STATED = "not among `rails:` of hosts.yaml"
IN_VAIN = f"{STATED}, but "
WITH_PLUGIN = "EFA, which NCCL reaches by its plugin"
SLOWER_THAN_EFA = "EFA adapters of this host carry more"
# PCI device ids of BlueField, BlueField-2 and BlueField-3 in the form of hca_type. Source: pci.ids, vendor 15b3.
BLUEFIELD_TYPES = ("MT41680", "MT41682", "MT41686", "MT41692")

Reasons = dict[str, str]
"""The reason why a port is no rail, by `Nic.hca`."""


def rails_of(host: Host) -> tuple[Nic, ...]:
    """Return the rails in order of their numbers. Choose them first if the host has no choice yet."""
    chosen = host if any(nic.rail_why for nic in host.nics) else with_rails(host)
    numbers = {nic.hca: nic.rail for nic in chosen.nics if nic.rail is not None}
    return tuple(sorted((nic for nic in host.nics if nic.hca in numbers), key=lambda nic: numbers[nic.hca]))


def is_stated(nic: Nic) -> bool | None:
    """Return True if `rails:` of hosts.yaml names the port, False if it leaves it out, else None."""
    return True if nic.rail_why.startswith(STATED) else False if nic.rail_why == NOT_STATED else None


def with_rails(host: Host, stated: Sequence[str] | None = None) -> Host:
    """Return the host with its rails, the reason for every port, and the rail of every GPU. `stated` is `rails:`."""
    job = host.for_job()
    nearness = nearness_of(job)
    rails, why, reasons = _stated(job, stated) if stated else _chosen(job, nearness)
    numbers = {nic.hca: number for number, nic in enumerate(_in_order(rails, nearness))}
    nics = tuple(
        nic.model_copy(
            update={
                "rail": numbers.get(nic.hca),
                "rail_why": why if nic.hca in numbers else reasons.get(nic.hca) or nic.why or "no RDMA port",
            }
        )
        for nic in host.nics
    )
    nearest = {gpu.index: gpu for gpu in _with_nearest_rails(job.gpus, rails, numbers, nearness)}
    return host.model_copy(update={"nics": nics, "gpus": tuple(nearest.get(gpu.index, gpu) for gpu in host.gpus)})


def undecided_ports(host: Host) -> tuple[Nic, ...]:
    """Return the rails and equally good ports, in the order of the host, or () if facts or hosts.yaml decide.

    Either another group has as many ports, as fast and as near. Or each port has its own subnet and there is not one
    for each GPU: they may be rails, or one rail and storage.
    """
    host = host.for_job()
    rails = rails_of(host)
    if not rails or rails[0].rail_why == STATED or rails[0].kind not in RAIL_KINDS:
        return ()
    nearness = nearness_of(host)
    groups = port_groups(host, _candidates(host, nearness, {}), nearness)
    best = next(group for group in groups if set(rails) <= set(group.ports))
    alike = [nic for group in ties(groups, best) for nic in group.ports]
    guessed = len(best.fabrics) == len(rails) > 1 and len(rails) != len(host.gpus)
    return tuple(nic for nic in host.nics if (alike or guessed) and (nic in rails or nic in alike))


def undetermined_ports(host: Host) -> tuple[Nic, ...]:
    """Return the ports that may be rails by all known facts, if they outnumber the rails and hosts.yaml names none."""
    rails = rails_of(host)
    may_be = [nic for nic in host.nics if nic.usable_by_nccl_ib is None and nic.kind in (*RAIL_KINDS, "unknown")]
    decided = bool(rails) and rails[0].rail_why == STATED
    return () if decided or len(may_be) <= len(rails) else tuple(may_be)


def _stated(host: Host, stated: Sequence[str]) -> tuple[list[Nic], str, Reasons]:
    """Return the usable ports that hosts.yaml names, of the one kind with the most bandwidth."""
    kinds_of_rails = (*RAIL_KINDS, "EFA", "unknown")  # a user who names a port knows its kind
    named = [nic for nic in host.nics if nic.kind in kinds_of_rails and named_by(stated, nic.device, nic.port)]
    usable = [nic for nic in named if nic.usable_by_nccl_ib is not False or nic in efa_rails(host)]
    kinds = sorted({nic.kind for nic in usable})
    kind = max(kinds, key=lambda kind: sum(nic.rate_gbps or 0 for nic in usable if nic.kind == kind), default="")
    rails = [nic for nic in usable if nic.kind == kind]
    reasons = {nic.hca: f"{nic.kind}, most ports that `rails:` names are {kind}" for nic in usable if nic.kind != kind}
    unnamed = [nic for nic in host.nics if nic not in named and nic.kind in kinds_of_rails]
    reasons |= {nic.hca: NOT_STATED for nic in unnamed}
    reasons |= {nic.hca: f"{IN_VAIN}{nic.why or 'NCCL does not take it'}" for nic in named if nic not in usable}
    return rails, STATED, reasons


def _chosen(host: Host, nearness: Nearness) -> tuple[list[Nic], str, Reasons]:
    reasons: Reasons = {}
    candidates, with_plugin = _candidates(host, nearness, reasons), list(efa_rails(host))
    groups = port_groups(host, candidates, nearness)
    if not groups:
        return with_plugin, WITH_PLUGIN, reasons
    best = best_group(groups)
    if with_plugin and _carries_no_less(with_plugin, best):
        return with_plugin, WITH_PLUGIN, {**{nic.hca: SLOWER_THAN_EFA for nic in candidates}, **reasons}
    rails = near_part(host, best, nearness)
    for group in groups:
        for nic in group.ports:
            if nic not in rails:
                reasons[nic.hca] = "far from the GPUs, each of which has a rail beside it"
            if group is not best:
                reasons[nic.hca] = _why_not(host, group, nic, best)
    return list(rails), _why(host, rails, best, bool(reasons)), reasons


def _carries_no_less(adapters: Sequence[Nic], group: PortGroup) -> bool:
    """Return True if the adapters carry as much as the group, or a rate is not known: they are meant for jobs."""
    rates = [nic.rate_gbps for nic in adapters]
    return None in rates or sum(rate or 0 for rate in rates) >= group.total_gbps


def _candidates(host: Host, nearness: Nearness, reasons: Reasons) -> list[Nic]:
    """Return the ports that NCCL uses, without front-end ports. Add the reason for each of these to `reasons`."""
    found = [nic for nic in host.nics if nic.usable_by_nccl_ib and nic.kind in RAIL_KINDS]
    for leave_out in (_fast_paths, _front_end, _beside_connectx):
        out = leave_out(host, found, nearness)
        reasons |= out
        found = [nic for nic in found if nic.hca not in out]
    return found


def _fast_paths(host: Host, candidates: Sequence[Nic], _: Nearness) -> Reasons:
    out = [nic for nic in candidates if is_fast_path(host, nic)]
    return {nic.hca: "accelerated networking of a virtual netdev, which carries TCP alone" for nic in out}


def _front_end(host: Host, candidates: Sequence[Nic], _: Nearness) -> Reasons:
    """Return the RoCE ports that carry the default route, unless no other port leads anywhere."""
    carriers = default_route_netdevs(host)
    out = {
        nic.hca: f"the default route goes over its netdev {nic.netdev}: front end"
        for nic in candidates
        if nic.kind == "RoCE" and nic.netdev in carriers
    }
    left = [nic for nic in candidates if nic.hca not in out]
    leads_on = any(nic.kind == "InfiniBand" or any(map(has_address, netdevs_of(host, nic))) for nic in left)
    return out if leads_on else {}


def _beside_connectx(host: Host, candidates: Sequence[Nic], nearness: Nearness) -> Reasons:
    """Return the BlueField ports of a host with ConnectX ports, unless they are nearer to or one for each GPU."""
    ours = [nic for nic in candidates if nic.hca_type in BLUEFIELD_TYPES]
    others = [nic for nic in candidates if nic.hca_type not in BLUEFIELD_TYPES]
    if not ours or not others or not all(nic.hca_type for nic in others):
        return {}
    if min(_classes(ours, nearness), default=BESIDE) < min(_classes(others, nearness), default=BESIDE):
        return {}
    if len(ours) >= max(2, len(host.gpus)) > len(others):
        return {}
    return {nic.hca: "a BlueField's host port, beside ConnectX ports: storage or front end" for nic in ours}


def _classes(nics: Iterable[Nic], nearness: Nearness) -> list[int]:
    return [path_class(path) for nic in nics for path in nearness.get(nic.device, {}).values()]


def _why(host: Host, rails: Sequence[Nic], group: PortGroup, others: bool) -> str:
    """Return the reason for these rails, in the same words for all of them."""
    first = rails[0]
    rate = f" of {first.rate_gbps:g} Gbit/s" if first.rate_gbps else ""
    if len(rails) == 1:
        reason = f"the only {first.kind} port{rate}" if not others else f"an {first.kind} port{rate}"
        reason = reason.replace("an RoCE", "a RoCE")
    else:
        reason = f"one of {len(rails)} {first.kind} ports{rate} alike"
    if len(rails) > 1 and len(group.fabrics) == len(rails):
        reason += ", each in a subnet of its own"
    elif len(group.fabrics) == 1 and (place := _place(fabric_of_port(host, first), first.kind)):
        reason += f", {place}"
    return reason + (", next to the GPUs" if group.distance == BESIDE else "")


def _place(fabric: tuple[object, ...], kind: str) -> str:
    """Return the network of a port in words, or "" if it is not known."""
    if kind != "InfiniBand":
        return f"in {', '.join(map(str, fabric))}" if fabric != (None,) else ""
    return f"below SM lid {fabric[1]}" if fabric[1] else ""


def _why_not(host: Host, group: PortGroup, nic: Nic, best: PortGroup) -> str:
    """Return the difference between a left-out port and the rails."""
    what = f"{len(best.ports)} rails" if len(best.ports) > 1 else "rail"
    have = "have" if len(best.ports) > 1 else "has"
    if group.kind != best.kind:
        return f"{group.kind}; the {what} {have} more bandwidth as {best.kind}"
    if group.rate_gbps != best.rate_gbps:
        return f"{_rate(nic)}; the {what} {have} {best.rate_gbps:g} Gbit/s"
    fabric = fabric_of_port(host, nic)
    if group.distance is not None and best.distance is not None and group.distance > best.distance:
        place = _place(fabric, nic.kind)
        return f"farther from the GPUs than the {what}" + (f", {place}" if place else "")
    if not group.fabrics & best.fabrics:
        if fabric == (None,):
            return f"its netdev has no address, those of the {what} have"
        if nic.kind == "InfiniBand":
            return f"{_place(fabric, nic.kind) or 'in another subnet or partition'}, where the {what} {have} another"
        return f"{_place(fabric, nic.kind)}, another network than the {what}"
    return f"another card model than the {what}"


def _rate(nic: Nic) -> str:
    return f"{nic.rate_gbps:g} Gbit/s" if nic.rate_gbps else "rate not known"


def _in_order(rails: Iterable[Nic], nearness: Nearness) -> list[Nic]:
    """Sort the rails by the GPUs on the same PCI switch, then by PCI address, then by name."""

    def place(nic: Nic) -> tuple[object, ...]:
        paths = nearness.get(nic.device, {})
        best = min((path for path in paths.values() if path_class(path) == BESIDE), key=path_rank, default=None)
        gpus = tuple(sorted(gpu for gpu, path in paths.items() if path == best))
        parts = re.split(r"(\d+)", nic.device)
        natural = tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
        return best is None, gpus, nic.pci_address or "~", natural, nic.port

    return sorted(rails, key=place)


def _with_nearest_rails(
    gpus: Sequence[Gpu], rails: Sequence[Nic], numbers: Mapping[str, int], nearness: Nearness
) -> tuple[Gpu, ...]:
    """Return the GPUs, each with its nearest rail. Several GPUs at the same rails take turns.

    If no path is known, GPUs have the rails of their numbers, provided there are as many rails as GPUs.
    """
    known = any(nearness.get(nic.device) for nic in rails)
    if not known:
        by_number = len(gpus) == len(rails)
        return tuple(g.model_copy(update={"rail": index if by_number else None}) for index, g in enumerate(gpus))
    taken: dict[tuple[int, ...], int] = {}
    found = []
    for gpu in gpus:
        beside = _beside(gpu, rails, numbers, nearness)
        turn = taken.get(beside, 0)
        taken[beside] = turn + 1
        found.append(gpu.model_copy(update={"rail": beside[turn % len(beside)] if beside else None}))
    return tuple(found)


def _beside(gpu: Gpu, rails: Iterable[Nic], numbers: Mapping[str, int], nearness: Nearness) -> tuple[int, ...]:
    """Return the numbers of the rails nearest to the GPU, if they are at PIX or PXB."""
    paths = {numbers[nic.hca]: nearness.get(nic.device, {}).get(gpu.index, "SYS") for nic in rails}
    best = min(paths.values(), key=path_rank, default="SYS")
    return tuple(sorted(n for n, path in paths.items() if path == best)) if path_class(best) == BESIDE else ()
