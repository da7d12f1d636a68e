"""Causes that make a run slow, such as TCP in place of RDMA, no GPUDirect or unused NICs, and remarks on choices."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import replace

from prober.nccl_logs import cause_texts as causes
from prober.nccl_logs.cause_texts import LogFinding
from prober.nccl_logs.failure_causes import differing_settings, is_local
from prober.nccl_logs.log_facts import AMBIGUOUS, LogFacts, NcclProcess
from prober.nccl_logs.run_facts import RDMA, RunFacts, evidence_of_network, host_names, network_of, plain_processes

_SPARK_DEVICE = re.compile(r"roce(p1|P2p1)s0f\d$")  # of DGX Spark, which has no GPUDirect RDMA
_SOFT_DEVICE = re.compile(r"(rxe|siw)")
_MIN_CLOUD_INTERFACES = 4  # with TCP on one host, each in its own network: these are NICs of GPUs
_MIN_EFA_NICS = 5  # with fewer, the machine type may have no GPUDirect RDMA
_GPU_DIRECT = re.compile(r"plugin:(?!FastSocket$)")  # modules with GPUDirect RDMA
_MIN_RANKS_OF_NICS = 4
_MIN_RANKS_OF_ONE_NIC = 8  # hosts with this many GPUs have more than one NIC
# Source: AWS, "Maximize network bandwidth with multiple network cards".
_EFA_NICS = {"p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16}
_EFA_NICS |= {"p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16}
_EFA_INTERFACES = {"ens32", "ens64", "enp71s0"}  # of machine types with EFA and eight GPUs
_CLOUD_PLUGINS = re.compile(r"(AWS|Libfabric|ofi|FasTrak|gIB|GPUDirectTCPX|FastSocket)", re.IGNORECASE)


def slow_causes(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    """Yield causes that make the run slow, the most costly first."""
    if run.is_one_host:
        return
    yield from itertools.islice(_over_tcp(facts, run), 1)  # the others follow from the first
    yield from _software(facts)
    yield from _collnet(facts)
    yield from _few_nics_of_efa(facts)
    yield from _without_gpu_direct(facts, run)
    yield from _one_nic(facts, run)
    yield from _crossed_rails(facts)


def _over_tcp(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    sockets = [process for process in facts.processes.values() if network_of(process) == "Socket"]
    lines = (line for each in sockets for line in (*each.networks.values(), *each.plain.values()))
    network = next(lines, evidence_of_network(facts))
    if run.network == "plugin:FastSocket":
        yield causes.CLOUD_PLUGIN_MISSING.finding(facts.line("offers-FastSocket") or network)
    ofi = facts.first("ofi-failed", "plugin-failed")
    provider = facts.first("ofi-provider")
    if provider and re.match(r"(tcp|sockets|udp)", provider.values["provider"]):
        yield causes.EFA_PLUGIN_FAILED.finding(provider.evidence, network, detail=": libfabric offers TCP only")
    others = ofi or facts.first("no-network")
    if not run.uses_network or (run.network != "Socket" and not sockets and (run.network in RDMA or not others)):
        return
    if ofi and (run.network == "Socket" or sockets or not evidence_of_network(facts)):
        gdr = facts.line("ofi-no-gdr")
        remedy = "GPUDirect RDMA (GDR) is not offered by this libfabric: that comes first. " if gdr else ""
        yield causes.EFA_PLUGIN_FAILED.finding(ofi.evidence, gdr, network, remedy=remedy)
    if off := facts.setting("NCCL_IB_DISABLE", "1") or facts.setting("NCCL_NET", "Socket", "socket"):
        yield causes.IB_DISABLED.finding(off.evidence, network)
    if cloud := _cloud_sign(facts, sockets):
        yield cloud
    suggested = _suggests_rdma(facts)
    detail = "" if suggested else "; nothing else in the logs suggests RDMA, and for Ethernet alone this is right"
    if verbs := facts.first("no-verbs"):
        yield replace(causes.NO_VERBS.finding(verbs.evidence, network, detail=detail), is_open=not suggested)
    if device := facts.first("no-device"):
        named = facts.setting("NCCL_IB_HCA", host=device.host)
        shown = (facts.line("device-unopened"), named.evidence if named else None, network)
        yield replace(causes.NO_DEVICE.finding(device.evidence, *shown, detail=detail), is_open=not suggested)


def _suggests_rdma(facts: LogFacts) -> bool:
    """Return True if a variable, a device, a plugin or IPoIB suggests that hosts have RDMA."""
    processes = facts.processes.values()
    names = (name for each in processes for name in (*each.interfaces, *each.out_of_band, *each.sockets))
    variables = (name for each in processes for name in each.settings)
    signs = ("device-unopened", "plugin-loaded", "plugin-named", "plugin-unusable", "plugin-broken", "cloud-path")
    return (
        any(name.startswith("ib") for name in names)
        or any(re.match(r"NCCL_(IB_|NET_GDR_|NET_PLUGIN$|COLLNET_ENABLE$)", name) for name in variables)
        or any(each.devices or each.gdr_of_hcas for each in processes)
        or facts.first(*signs, "no-network", "ofi-failed", "ofi-version") is not None
    )


def _cloud_sign(facts: LogFacts, sockets: list[NcclProcess]) -> LogFinding | None:
    """Return a finding if a cloud's plugin was named and not loaded, or if the host looks like one that needs it."""
    missing = facts.line("no-plugin")
    if unusable := facts.line("plugin-unusable"):
        return causes.CLOUD_PLUGIN_MISSING.finding(unusable, detail="; this one is too old for this NCCL")
    if facts.first("plugin-loaded", "ofi-version"):
        return None
    if broken := facts.first("plugin-broken"):
        detail = f"; a plugin is there and cannot load ({broken.values['library']}): install what it needs"
        return causes.CLOUD_PLUGIN_MISSING.finding(broken.evidence, missing, detail=detail)
    network = facts.first("no-network")
    named = facts.line("plugin-named", "cloud-path")
    asked = next((each.settings["NCCL_NET_PLUGIN"] for each in sockets if "NCCL_NET_PLUGIN" in each.settings), None)
    if network and _CLOUD_PLUGINS.search(network.values["network"]):
        return causes.CLOUD_PLUGIN_MISSING.finding(network.evidence, missing)
    if missing and (named or (asked and asked.value != "none")):
        return causes.CLOUD_PLUGIN_MISSING.finding(named or (asked.evidence if asked else None), missing)
    many = any(_data_networks(process) >= _MIN_CLOUD_INTERFACES for process in sockets)
    finding = causes.CLOUD_PLUGIN_MISSING.finding(facts.line("offers-Socket") or evidence_of_network(facts), missing)
    large = facts.largest is not None and (facts.largest.local_ranks or 0) >= _MIN_RANKS_OF_ONE_NIC
    efa = any(_is_of_ec2(each) and (large or _EFA_INTERFACES & {*each.interfaces, *each.sockets}) for each in sockets)
    return replace(finding, is_open=True) if many or efa else None


def _is_of_ec2(process: NcclProcess) -> bool:
    """Return True if the host has a name of EC2: its own address, or one in EC2's domains."""
    name, _, domain = process.host.partition(".")
    own = process.address != "" and name == f"ip-{process.address.replace('.', '-')}"
    return own or domain == "ec2.internal" or domain.endswith(".compute.internal")


def _data_networks(process: NcclProcess) -> int:
    """Return the number of networks of a process that uses sockets, or 0 with IPoIB."""
    networks = set()
    for name, address in process.sockets.items():
        if name.startswith("ib"):
            return 0
        if not is_local(name, address) and not address.lower().startswith("fe80:"):
            networks.add(address.rpartition(".")[0] or address[:19])
    return len(networks)


def _software(facts: LogFacts) -> Iterator[LogFinding]:
    for process in facts.processes.values():
        if process.devices and all(_SOFT_DEVICE.match(device.name) for device in process.devices):
            yield causes.SOFT_RDMA.finding(process.devices_line)
            return


def _collnet(facts: LogFacts) -> Iterator[LogFinding]:
    asked = facts.setting("NCCL_COLLNET_ENABLE", "1")
    signs = ("no-collnet-plugin", *(() if facts.first("plugin-loaded") else ("no-plugin",)))
    missing = facts.line(*signs) if asked and not facts.first("no-collnet") else None
    if "sharp" in facts.signs or missing:
        yield causes.SHARP_UNAVAILABLE.finding(*(each.evidence for each in facts.signs.get("sharp", ())), missing)


def _few_nics_of_efa(facts: LogFacts) -> Iterator[LogFinding]:
    platform, provider = facts.first("ofi-platform"), facts.first("ofi-provider")
    if platform and provider and provider.values["provider"].startswith("efa"):
        expected, count = _EFA_NICS.get(platform.values["platform"], 0), int(provider.values["count"][:6])
        if count < expected:
            yield causes.ONE_NIC.finding(
                provider.evidence, platform.evidence, detail=f": {count} of {expected} of {platform.values['platform']}"
            )


def _without_gpu_direct(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    by_gpu = run.network in RDMA or _GPU_DIRECT.match(run.network or "")
    if run.gdr is not False or (not by_gpu and not facts.first("ofi-no-gdr")):
        return
    platform = facts.first("ofi-platform")
    if platform and platform.values["platform"] not in _EFA_NICS:
        return  # EFA without GPUDirect: the machine type has none
    names = host_names(facts)
    plain = [facts.processes[key] for key in plain_processes(facts, names)]
    accused = {each.host for each in plain}
    lines = [line for process in plain for line in process.plain.values()]
    switches = (("NCCL_NET_GDR_LEVEL", "LOC", "0"), ("NCCL_NET_GDR_DISABLE", "1"))
    found = (facts.setting(*switch, host=host) for switch in switches for host in accused or {""})
    setting = next(filter(None, found), None)
    line = lines[0] if lines else facts.line("ofi-no-gdr") or evidence_of_network(facts)
    hosts = f": {len(plain)} processes on {', '.join(run.plain_hosts[:8])}, while others do" if run.direct_hosts else ""
    remedy = "Unset the variable that switches it off (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_DISABLE). " if setting else ""
    distant = (each.evidence for each in facts.signs.get("far-nic", ()) if not accused or each.host in accused)
    if far := next(distant, None):
        remedy += "NCCL takes GPU and NIC for too far apart: NCCL_NET_GDR_LEVEL=SYS tries it. "
    finding = causes.GDR_OFF.finding(setting.evidence if setting else None, line, far, detail=hosts, remedy=remedy)
    spark = all(map(_SPARK_DEVICE.match, run.hcas or ("",)))
    provider = facts.first("ofi-provider")
    nics = max(len(run.hcas), int(provider.values["count"][:6]) if provider else 0)
    small = run.network == "EFA" and not platform and not facts.first("ofi-no-gdr") and nics < _MIN_EFA_NICS
    yield _as_remark(finding) if (spark or small) and not run.direct_hosts else finding


def _one_nic(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    """Yield a host with several devices whose ranks use only one, or to which NCCL_IB_HCA leaves only one."""
    hosts: dict[str, list[NcclProcess]] = {}
    for process in facts.processes.values():
        hosts.setdefault(process.host, []).append(process)
    offers = {host: {device.name for each in members for device in each.devices} for host, members in hosts.items()}
    for host, members in hosts.items():
        channels = [channel for each in members for channel in (*each.direct.items(), *each.plain.items())]
        used = {device: line for (_, device), line in channels}
        ports = {device for process in members for device in process.devices}
        links = {port.link for port in ports if port.device in used}  # NICs of another kind are for storage
        offered = {port.device for port in ports if port.link in links}
        line = next((each.devices_line for each in members if each.devices_line), None)
        numbers = functools.reduce(operator.or_, (each.channels for each in members))
        several = numbers & (numbers - 1) != 0  # more than one bit
        if len(offered) > 1 and len(used) == 1 and set(used) <= offered and several:
            finding = causes.ONE_NIC.finding(line, *used.values(), detail=f": {len(offered)} are offered")
            carrying = sum(bool(each.direct or each.plain) for each in members)
            if carrying > 1 or run.gdr is False:
                # A single rank on its host uses the NIC nearest to its GPU.
                yield finding if carrying > 1 else _as_remark(finding)
                return
        setting = next((each.settings["NCCL_IB_HCA"] for each in members if "NCCL_IB_HCA" in each.settings), None)
        logged = (facts.largest.local_ranks if facts.largest else None) or 0
        local = logged or max(sum(bool(each.pid) for each in members), *(each.gpu + 1 for each in members))
        only = _only_device(setting.value) if setting else None
        if setting and only and offers[host] == {only} and local >= _MIN_RANKS_OF_NICS:
            detail = f": NCCL_IB_HCA={setting.value} allows {local} ranks of a host {only} alone"
            finding = causes.ONE_NIC.finding(setting.evidence, line, detail=detail)
            more = any(len(names) > 1 for names in offers.values()) or not re.search(r"\D0$", only)
            yield finding if more or local >= _MIN_RANKS_OF_ONE_NIC else _as_remark(finding)
            return


def _only_device(value: str) -> str | None:
    """Return the single device that NCCL_IB_HCA names, or None for exclusions, lists and prefixes without a number.

    The form is `[^][=]NAME[:PORT[:RAIL[:PLANE]]],...`. Source: NCCL's guide, and src/misc/utils.cc.
    """
    match = re.fullmatch(r"=?([\w-]*\d)(?::\d*){0,3}", value)
    return match[1] if match else None


def _as_remark(finding: LogFinding) -> LogFinding:
    """Return the finding as a remark, which is never the verdict."""
    return replace(finding, is_remark=True)


def _crossed_rails(facts: LogFacts) -> Iterator[LogFinding]:
    """Yield a finding if most channels leave a host by another NIC than the one they enter by."""
    both = [ends for ends in facts.pairs.values() if ends.sent_by is not None and ends.received_by is not None]
    both = [ends for ends in both if AMBIGUOUS not in (ends.sent_by, ends.received_by)]
    apart = [ends for ends in both if ends.sent_by != ends.received_by]
    setting = facts.setting("NCCL_CROSS_NIC")
    wanted = setting is not None and setting.value == "1"
    sides: dict[tuple[str, str, str], tuple[set[int], set[int]]] = {}
    for (communicator, channel, _, _), ends in facts.pairs.items():
        if ends.sent_by is not None:
            sides.setdefault((communicator, ends.sender_host, channel), (set(), set()))[0].add(ends.sent_by)
        if ends.received_by is not None:
            sides.setdefault((communicator, ends.receiver_host, channel), (set(), set()))[1].add(ends.received_by)
    whole = [ends for ends in sides.values() if all(ends) and AMBIGUOUS not in ends[0] | ends[1]]
    unequal = sum(sent != received for sent, received in whole)
    proven = len(apart) > 1 and len(apart) * 2 >= len(both)
    if proven or (wanted and unequal > 1 and unequal * 2 >= len(whole)):
        of_hosts = f": {unequal} of {len(whole)} channels of a host"
        detail = f": {len(apart)} of {len(both)} connections" if proven else of_hosts
        finding = causes.RAILS_CROSSED.finding(setting.evidence if setting else None, facts.pair_line, detail=detail)
        yield finding if wanted else _as_remark(finding)  # NCCL crosses rails itself if it assumes a shared switch


def remarks(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    """Yield choices that may be intended."""
    yield from _inside_the_host(facts)
    largest = facts.largest
    if largest and largest.channels == 1 and not run.is_one_host:
        yield causes.FEW_CHANNELS.finding(largest.channels_line)
    ofi = facts.line("ofi-failed", "plugin-failed")
    if ofi and run.network in ("IB", "RoCE"):
        yield causes.STALE_PLUGIN.finding(ofi)
    if nvls := facts.setting("NCCL_NVLS_ENABLE", "0"):
        yield causes.NVLS_BY_ENV.finding(nvls.evidence)
    warnings = [*facts.signs.get("other-warning", ()), *(each for each in facts.signs.get("cuda", ()) if each.warns)]
    if warnings and facts.completed:
        yield causes.UNKNOWN_WARNING.finding(*(each.evidence for each in warnings))
    platform = facts.first("ofi-platform")
    if platform and platform.values["platform"] in _EFA_NICS and largest and largest.local_ranks == 1:
        yield causes.PODS_SPLIT.finding(platform.evidence)
    if closed := facts.line("peer-closed"):
        yield causes.PEER_EXITED.finding(closed)
    disabled = facts.setting("NCCL_IB_DISABLE", "1")
    modules = {module for each in facts.processes.values() for module in each.networks}
    if disabled and modules - {"IB", "Socket"}:
        yield causes.PLUGIN_IGNORES_ENV.finding(disabled.evidence)
    for name, setting, _ in differing_settings(facts)[:1]:
        finding = causes.ENV_MISMATCH.finding(setting.evidence, detail=f": {name}={setting.value}", remedy=f"{name}: ")
        yield _as_remark(finding)


def _inside_the_host(facts: LogFacts) -> Iterator[LogFinding]:
    processes = facts.processes.values()
    off = facts.setting("NCCL_P2P_DISABLE", "1") or facts.setting("NCCL_P2P_LEVEL", "LOC", "0")
    only_shm = not any("P2P" in process.inside for process in processes)
    lines = [process.inside["SHM"] for process in processes if "SHM" in process.inside and only_shm]
    if off or lines or facts.first("p2p-broken"):
        yield causes.P2P_OFF.finding(off.evidence if off else None, facts.line("p2p-broken"), *lines)
    gpus: dict[str, bool] = {}
    for process in processes:
        for (gpu, _), enabled in process.gdr_of_pairs.items():
            gpus[gpu] = gpus.get(gpu, False) or enabled
    if far := sorted(gpu for gpu, near in gpus.items() if not near):
        yield causes.FAR_NIC.finding(facts.line("far-nic"), detail=f": GPU {', '.join(far[:8])}")
