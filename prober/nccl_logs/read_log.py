"""Messages of NCCL, read into facts. Source: NCCL 2.14 to 2.30, and the plugins of AWS, Google and NVIDIA."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from prober.nccl_logs.fault_signs import SIGNS, is_harmless
from prober.nccl_logs.log_facts import (
    MAX_COMMUNICATORS,
    MAX_NAMES,
    MAX_PAIRS,
    MAX_PROCESSES,
    Communicator,
    Ends,
    LogFacts,
    LoggedVariable,
    NcclProcess,
    RdmaDevice,
    Sighting,
)
from prober.nccl_logs.nccl_lines import MAX_MESSAGE, LogSize, NcclMessage, nccl_messages

MAX_RANKS = 1_048_576  # a larger number is no rank
_ADDRESS = re.compile(r"(?:\[\d+\])?([\w.@-]+):([0-9a-fA-F.:]+(?:%[\w.-]+)?)<\d+>")
_DEVICE = re.compile(r"\[(\d+)\](?:=\{([^}]*)|([\w.+-]+:\d+/(?:IB|RoCE)\b))")  # merged ports are in braces
_PORT = re.compile(r"([\w.-]+)(?:\+[\w.+-]+)?:\d+/(IB|RoCE)\b")
_PATH = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(send|receive)\])? via "
    r"(?:NET/([^/]+)/(\d+)(\S*)|(\w+))"
)
_START = re.compile(r"comm (\w+) rank (\d+) nranks (\d+)(?:.*?commId (\w+))?(?:.*?- ?Init (START|COMPLETE))?")
_COMMUNICATOR = re.compile(r"comm (\w+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank \d+")
_RING = re.compile(r"Channel \d+/\d+ :((?: +\d+)+)\s*$")
_CODE = re.compile(r"version (\d+)")


class Reader(NamedTuple):
    """A message that states a fact: text that it always has, its form, and how the fact is kept."""

    needle: str
    form: re.Pattern[str]
    keep: Callable[[LogFacts, NcclProcess, NcclMessage, re.Match[str]], None]


def read_log(log: BinaryIO, name: str, facts: LogFacts) -> None:
    """Add the facts of one log, whole or cut, to the facts of others."""
    size = facts.files.setdefault(name, LogSize())
    for message in nccl_messages(log, name, size):
        process = _process(facts, message, name)
        if process is None:
            facts.left_out += 1
            continue
        for reader in _READERS:
            if reader.needle in message.text and (match := reader.form.search(message.text)):
                reader.keep(facts, process, message.from_match(match), match)
        _note_signs(facts, message)


def _note_signs(facts: LogFacts, message: NcclMessage) -> None:
    if message.text.startswith("Channel ") and not message.warns:  # most lines of many ranks, and never a sign
        return
    known = False
    text = f"{message.source} {message.text}" if message.source else message.text
    for sign, needle, form in SIGNS:
        if needle in text and (match := form.search(text)):
            known = True
            values = {key: value for key, value in match.groupdict().items() if value is not None}
            facts.note(sign, Sighting(message.host, message.pid, values, message.from_match(match).evidence))
    if message.warns and not known and not is_harmless(message):
        facts.note("other-warning", Sighting(message.host, message.pid, {}, message.evidence))


def _process(facts: LogFacts, message: NcclMessage, name: str) -> NcclProcess | None:
    """Return the process of a message: of its host and pid, else one that stands for the file."""
    key = (message.host, message.pid, "" if message.pid else name)
    if key not in facts.processes:
        if len(facts.processes) >= MAX_PROCESSES:
            return None
        facts.processes[key] = NcclProcess(message.host, message.pid)
    return facts.processes[key]


def _put(names: dict[str, str], name: str, value: str) -> None:
    if name in names or len(names) < MAX_NAMES:
        names[name] = value


def _keep_bootstrap(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    for name, address in _ADDRESS.findall(match[1]):
        _put(process.interfaces, name, address)
    facts.note("bootstrap", Sighting(message.host, message.pid, {}, message.evidence))


def _keep_sockets(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    for name, address in _ADDRESS.findall(match[2]):
        _put(process.sockets, name, address)
    facts.note(f"offers-{match[1]}", Sighting(message.host, message.pid, {}, message.evidence))


def _keep_devices(_: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    ports, __, band = match[1].partition("OOB")
    devices: list[RdmaDevice] = []
    for number, merged, single in _DEVICE.findall(ports)[:MAX_NAMES]:
        devices += (RdmaDevice(int(number[:6]), name, link) for name, link in _PORT.findall(merged or single))
    if devices:
        process.devices, process.devices_line = tuple(devices[:MAX_NAMES]), message.evidence
    for name, address in _ADDRESS.findall(band):
        _put(process.out_of_band, name, address)


def _keep_network(_: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    if len(process.networks) < MAX_NAMES:
        process.networks.setdefault(match[1].strip(), message.evidence)


def _keep_setting(_: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    if match[1] in process.settings or len(process.settings) < MAX_NAMES:
        process.settings[match[1]] = LoggedVariable(match[2].strip().removesuffix("."), message.evidence)


def _keep_version(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    process.version = match[1]
    if len(facts.versions) < MAX_NAMES:
        facts.versions.setdefault(match[1], message.evidence)


def _keep_mismatch(facts: LogFacts, _: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    for code in _CODE.findall(match[0])[:4]:
        facts.versions.setdefault(version_of_code(int(code[:9])), message.evidence)


def version_of_code(code: int) -> str:
    """Return 2.27.5 for 22705; before 2.9 the numbers were of four digits."""
    major = 10_000 if code >= 10_000 else 1_000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def _keep_channel(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    channel, source, target, way, network, device, rest, inside = match.groups()
    if network is None:
        if inside in ("P2P", "SHM"):
            process.inside.setdefault(inside, message.evidence)
        return
    kept = process.direct if "GDRDMA" in rest else process.plain
    key = (network, int(device[:6]))
    if key in kept or len(kept) < MAX_NAMES:
        kept.setdefault(key, message.evidence)
    pair = (int(channel[:6]), int(source[:9]), int(target[:9]))
    if way is None or (pair not in facts.pairs and len(facts.pairs) >= MAX_PAIRS):
        return
    facts.pair_line = facts.pair_line or message.evidence
    ends = facts.pairs.get(pair, Ends(None, "", None, ""))
    if way == "send":
        facts.pairs[pair] = ends._replace(sent_by=key[1], sender_host=message.host)
    else:
        facts.pairs[pair] = ends._replace(received_by=key[1], receiver_host=message.host)


def _communicator(facts: LogFacts, key: str, num_ranks: int) -> Communicator | None:
    if key not in facts.communicators:
        if len(facts.communicators) >= MAX_COMMUNICATORS:
            facts.left_out += 1
            return None
        facts.communicators[key] = Communicator(num_ranks)
    return facts.communicators[key]


def _keep_start(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    pointer, rank, num_ranks, identity, phase = match.groups()
    if int(num_ranks[:9]) > MAX_RANKS:
        return
    key = identity or process.communicators.get(pointer) or f"{num_ranks} ranks"
    communicator = _communicator(facts, key, int(num_ranks))
    if communicator is None:
        return
    if len(process.communicators) < MAX_NAMES:
        process.communicators[pointer] = key
    if len(communicator.ranks) < MAX_PROCESSES:
        communicator.ranks[int(rank[:9])] = message.host
    if phase == "COMPLETE":
        communicator.completed += 1
    elif phase:
        process.started = process.started or message.evidence


def _keep_communicator(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    pointer, rank, num_ranks, num_nodes, local_ranks = match.groups()
    if int(num_ranks[:9]) > MAX_RANKS:
        return
    communicator = _communicator(facts, process.communicators.get(pointer, f"{num_ranks} ranks"), int(num_ranks))
    if communicator is not None:
        communicator.num_nodes, communicator.local_ranks = int(num_nodes[:9]), int(local_ranks[:9])
        if len(communicator.ranks) < MAX_PROCESSES:
            communicator.ranks[int(rank[:9])] = message.host


def _keep_ring(facts: LogFacts, _: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    ranks = match[1].split()
    if len(ranks) > 1 and len(message.text) < MAX_MESSAGE - 1 and not facts.communicators:
        facts.note("ring", Sighting(message.host, message.pid, {"ranks": str(len(ranks))}, message.evidence))


def _keep_channels(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    keys = list(process.communicators.values())
    communicator = facts.communicators.get(keys[-1]) if keys else facts.largest
    if communicator is not None:
        communicator.channels, communicator.channels_line = int(match[1][:6]), message.evidence


def _keep_hca(_: LogFacts, process: NcclProcess, __: NcclMessage, match: re.Match[str]) -> None:
    if len(process.gdr_of_hcas) < MAX_NAMES:
        process.gdr_of_hcas[match[2]] = match[1].lower() == "enabled"


def _keep_gdr_pair(_: LogFacts, process: NcclProcess, __: NcclMessage, match: re.Match[str]) -> None:
    if len(process.gdr_of_pairs) < MAX_PAIRS // 64:
        process.gdr_of_pairs[match[2], match[3]] = match[1] == "Enabled"


def _keep_efa_name(_: LogFacts, process: NcclProcess, __: NcclMessage, match: re.Match[str]) -> None:
    if len(process.gdr_of_hcas) < MAX_NAMES and match[1] not in {device.name for device in process.devices}:
        process.devices = (*process.devices, RdmaDevice(len(process.devices), match[1], "EFA"))[:MAX_NAMES]


_READERS = (
    Reader("ootstrap", re.compile(r"Bootstrap ?: Using ?(.*)"), _keep_bootstrap),
    Reader(" : Using", re.compile(r"NET/(?!\w*IB\w* )(\w+) : Using (.*<\d+>.*)"), _keep_sockets),
    Reader("NET/", re.compile(r"NET/(?:IB|gIB)\w* : Using(.*)"), _keep_devices),
    Reader("Using network", re.compile(r"Using network (.+)"), _keep_network),
    Reader("set by environment to", re.compile(r"\b(NCCL_\w+) set by environment to (.*)"), _keep_setting),
    Reader("NCCL_", re.compile(r"^(NCCL_(?:IB_HCA|SOCKET_IFNAME)) set to (.*)"), _keep_setting),
    Reader("version", re.compile(r"(?:NCCL|RCCL) version v?(\d+\.\d+(?:\.\d+)?)"), _keep_version),
    Reader("version", re.compile(r"^version v?(\d+\.\d+\.\d+)"), _keep_version),
    Reader("nccl==", re.compile(r"nccl==(\d+\.\d+\.\d+)"), _keep_version),
    Reader("Mismatched NCCL version", re.compile(r"Mismatched NCCL version.*"), _keep_mismatch),
    Reader("via", _PATH, _keep_channel),
    Reader("nranks", _START, _keep_start),
    Reader("nRanks", _COMMUNICATOR, _keep_communicator),
    Reader("Channel", _RING, _keep_ring),
    Reader("coll channels", re.compile(r"(\d+) coll channels"), _keep_channels),
    Reader(
        "for HCA",
        re.compile(r"GPU Direct RDMA (?:\(.*?\) )?([eE]nabled|[dD]isabled) for HCA \d+ '([\w.-]+)"),
        _keep_hca,
    ),
    Reader(
        "for GPU",
        re.compile(r"GPU Direct RDMA (Enabled|Disabled) for GPU (\w+) / HCA (\w+) \(distance"),
        _keep_gdr_pair,
    ),
    Reader("GUID of", re.compile(r"NET/OFI GUID of ([\w.-]+):"), _keep_efa_name),
)
