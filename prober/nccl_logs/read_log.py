"""The reader of NCCL's messages. Source: NCCL 2.14 to 2.30, and the plugins of AWS, Google and NVIDIA."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, TypeVar

from prober.nccl_logs.fault_signs import HARMLESS, SIGNS
from prober.nccl_logs.log_facts import (
    AMBIGUOUS,
    MAX_COMMUNICATORS,
    MAX_NAMES,
    MAX_PAIRS,
    MAX_PROCESSES,
    PROCESS_BYTES,
    Communicator,
    Ends,
    LogFacts,
    LoggedVariable,
    NcclProcess,
    ProcessKey,
    RdmaDevice,
    Sighting,
)
from prober.nccl_logs.nccl_lines import MAX_MESSAGE, Evidence, LogSize, NcclMessage, nccl_messages
from prober.nccl_logs.restarts import leave_out_earlier_runs, restarted

K = TypeVar("K")
V = TypeVar("V")
MAX_RANKS = 1_048_576  # a larger number is not a number of ranks
_ADDRESS = re.compile(r"(?<![\w.@-])([\w.@-]{1,64}):([0-9a-fA-F.:]{1,45}(?:%[\w.-]{1,64})?)<\d{1,9}>")
_DEVICE = re.compile(r"\[(\d+)\](?:=\{([^}]*)|([\w.+-]{1,256}:\d{1,4}/(?:IB|RoCE)\b))")  # merged ports are in braces
_PORT = re.compile(r"(?<![\w.+-])([\w.-]{1,64})(?:\+[\w.+-]{1,192})?:\d{1,4}/(IB|RoCE)\b")
_PATH = re.compile(
    r"Channel (\d+(?:/\d+)?) : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(send|receive)\])? via "
    r"(?:NET/([^/]+)/(\d+)(\S*)|(?:P2P/)?(MNNVL|P2P|SHM))"
)
_START = re.compile(r"comm (\w+) rank (\d+) nranks (\d+)(?:.*?busId (\w+))?(?:.*?commId (\w+))?(?:.*?- ?Init (\w+))?")
_COMMUNICATOR = re.compile(r"comm (\w+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank \d+( MNNVL 1)?")
_RING = re.compile(r"Channel \d+/\d+ :((?: +\d+)+)\s*$")
_CODE = re.compile(r"version (\d+)")


class Reader(NamedTuple):
    """The reader of a message: text that it always contains, its form, and the function that keeps its fact."""

    needle: str
    form: re.Pattern[str]
    keep: Callable[[LogFacts, NcclProcess, NcclMessage, re.Match[str]], None]


def read_log(log: BinaryIO, name: str, facts: LogFacts) -> None:
    """Add the facts of one log, complete or cut off, to the facts of others."""
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
    leave_out_earlier_runs(facts, name)


def _note_signs(facts: LogFacts, message: NcclMessage) -> None:
    if message.text.startswith("Channel ") and not message.warns:  # most lines of a log, and never a sign
        return
    known = False
    text = f"{message.source} {message.text}" if message.source else message.text
    for sign, needle, form in SIGNS:
        if needle in text and (match := form.search(text)):
            known = True
            values = {key: value for key, value in match.groupdict().items() if value is not None}
            evidence = message.from_match(match).evidence
            facts.note(sign, Sighting(message.host, message.pid, values, evidence, message.warns))
    if message.warns and not known and not HARMLESS.search(f"{message.source} {message.text}"):
        facts.note("other-warning", Sighting(message.host, message.pid, {}, message.evidence))


def _process(facts: LogFacts, message: NcclMessage, name: str) -> NcclProcess | None:
    """Return the process with the message's host and pid, or without a pid one that stands for the file."""
    key = _key(message)
    if key not in facts.processes:
        if len(facts.processes) >= MAX_PROCESSES or not facts.has_room(*key, size_bytes=PROCESS_BYTES):
            return None
        facts.processes[key] = NcclProcess(message.host, message.pid, name, message.evidence.line)
    process = facts.processes[key]
    if process.file == name:
        process.end = message.evidence.line
    process.gpu = max(process.gpu, message.gpu)
    return process


def _key(message: NcclMessage) -> ProcessKey:
    return message.host, message.pid, "" if message.pid else message.evidence.file


def _put(facts: LogFacts, names: dict[K, V], name: K, value: V, *texts: str) -> None:
    """Keep a value under its name if there is room for `texts`. Replace a value that is there already."""
    if name in names or (len(names) < MAX_NAMES and facts.has_room(*texts)):
        names[name] = value


def _put_line(facts: LogFacts, lines: dict[K, Evidence], name: K, message: NcclMessage) -> None:
    """Keep a line under its name, if it is the first."""
    if name not in lines:
        _put(facts, lines, name, message.evidence, message.evidence.text, str(name))


def _keep_bootstrap(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    pairs = _ADDRESS.findall(match[1])
    if any(process.interfaces.get(name) == address for name, address in pairs):  # NCCL writes it once in a process
        process = restarted(facts, process, *message.evidence[:2])
    for name, address in pairs:
        _put(facts, process.interfaces, name, address, name, address)
    facts.note("bootstrap", Sighting(message.host, message.pid, {}, message.evidence))


def _keep_sockets(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    for name, address in _ADDRESS.findall(match[2]):
        _put(facts, process.sockets, name, address, name, address)
    facts.note(f"offers-{match[1]}", Sighting(message.host, message.pid, {}, message.evidence))


def _keep_devices(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    ports, __, band = match[1].partition("OOB")
    devices: list[RdmaDevice] = []
    for number, merged, single in _DEVICE.findall(ports)[:MAX_NAMES]:
        devices += (RdmaDevice(int(number[:6]), name, link) for name, link in _PORT.findall(merged or single))
    if devices and (process.devices_line or facts.has_room(*(each.name for each in devices))):
        process.devices, process.devices_line = tuple(devices[:MAX_NAMES]), message.evidence
    for name, address in _ADDRESS.findall(band):
        _put(facts, process.out_of_band, name, address, name, address)


def _keep_setting(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    setting = LoggedVariable(match[2].strip().removesuffix("."), message.evidence)
    _put(facts, process.settings, match[1], setting, match[0], message.evidence.text)


def _keep_version(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    process.version = match[1]
    _put_line(facts, facts.versions, match[1], message)


def _keep_mismatch(facts: LogFacts, _: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    for code in _CODE.findall(match[0])[:4]:
        _put_line(facts, facts.versions, version_of_code(int(code[:9])), message)


def version_of_code(code: int) -> str:
    """Return 2.27.5 for 22705. Before 2.9 such codes had four digits."""
    major = 10_000 if code >= 10_000 else 1_000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def _keep_channel(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    channel, source, target, way, network, device, rest, inside = match.groups()
    ranks = int(source[:9]), int(target[:9])
    if network is None:
        _put_line(facts, process.inside, inside, message)
        if inside != "MNNVL" and len(facts.inside_ranks) < MAX_NAMES:
            facts.inside_ranks.update(ranks)
        return
    process.progress = message.evidence.line
    process.channels |= 1 << min(int(channel.partition("/")[0][:6]), 127)
    kept = process.direct if "GDRDMA" in rest else process.plain
    process.sends_direct |= kept is process.direct and way == "send"
    process.only_sends_plain &= kept is process.direct or way == "send"
    key = (network, int(device[:6]))
    _put_line(facts, kept, key, message)
    pair = (next(reversed(process.communicators.values()), ""), channel[:12], *ranks)
    if way is None or (pair not in facts.pairs and len(facts.pairs) >= MAX_PAIRS):
        return
    facts.pair_line = facts.pair_line or message.evidence
    ends = facts.pairs.get(pair, Ends(None, "", None, ""))
    if way == "send":
        device_number = key[1] if ends.sent_by in (None, key[1]) else AMBIGUOUS
        facts.pairs[pair] = ends._replace(sent_by=device_number, sender_host=message.host)
    else:
        device_number = key[1] if ends.received_by in (None, key[1]) else AMBIGUOUS
        facts.pairs[pair] = ends._replace(received_by=device_number, receiver_host=message.host)


def _keep_connected(_: LogFacts, process: NcclProcess, message: NcclMessage, __: re.Match[str]) -> None:
    process.progress = message.evidence.line


def _communicator(
    facts: LogFacts, process: NcclProcess, message: NcclMessage, pointer: str, rank: int, size: int, identity: str
) -> Communicator | None:
    """Return the communicator of a pointer. Without an identity, take one of that size in which the rank is free."""
    key, known = _key(message), process.communicators.get(pointer, "")
    if known and (not identity or identity == known) and facts.communicators[known].num_ranks == size:
        return facts.communicators[known]
    names = (identity,) if identity else (f"{size} ranks, {number}" for number in range(MAX_NAMES))
    known_names = facts.communicators
    free = (n for n in names if identity or n not in known_names or known_names[n].ranks.get(rank, key) == key)
    name = next((name for name in free if identity or name not in process.communicators.values()), "")
    if not name or (name not in facts.communicators and len(facts.communicators) >= MAX_COMMUNICATORS):
        facts.left_out += 1
        return None
    communicator = facts.communicators.setdefault(name, Communicator(size))
    process.communicators.pop(pointer, None)
    _put(facts, process.communicators, pointer, name, pointer)
    if rank in communicator.ranks or (len(communicator.ranks) < MAX_PROCESSES and facts.has_room("")):
        communicator.ranks[rank] = key
    return communicator


def _keep_start(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    pointer, rank, size, bus, identity, phase = match.groups()
    if int(size[:9]) > MAX_RANKS:
        return
    process.bus = process.bus or (bus or "")[:16].lstrip("0")
    made = _communicator(facts, process, message, pointer, int(rank[:9]), int(size[:9]), (identity or "")[:40])
    if phase == "COMPLETE":
        process.progress = message.evidence.line
        if made is not None:
            made.completed += 1
    elif phase:
        process.started = process.started or message.evidence


def _keep_communicator(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    pointer, rank, size, num_nodes, local_ranks, nvlink = match.groups()
    if int(size[:9]) > MAX_RANKS:
        return
    communicator = _communicator(facts, process, message, pointer, int(rank[:9]), int(size[:9]), "")
    if communicator is not None:
        communicator.num_nodes, communicator.local_ranks = int(num_nodes[:9]), int(local_ranks[:9])
    if nvlink:
        _put_line(facts, process.inside, "MNNVL", message)


def _keep_ring(facts: LogFacts, _: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    ranks = match[1].split()
    if len(ranks) > 1 and len(message.text) < MAX_MESSAGE - 1 and not facts.communicators:
        facts.note("ring", Sighting(message.host, message.pid, {"ranks": str(len(ranks))}, message.evidence))


def _keep_channels(facts: LogFacts, process: NcclProcess, message: NcclMessage, match: re.Match[str]) -> None:
    keys = list(process.communicators.values())
    communicator = facts.communicators.get(keys[-1]) if keys else facts.largest
    if communicator is not None:
        communicator.channels, communicator.channels_line = int(match[1][:6]), message.evidence


def _keep_efa_name(facts: LogFacts, process: NcclProcess, __: NcclMessage, match: re.Match[str]) -> None:
    if match[1] not in {device.name for device in process.devices} and facts.has_room(match[1]):
        process.devices = (*process.devices, RdmaDevice(len(process.devices), match[1], "EFA"))[:MAX_NAMES]


_READERS = (
    Reader("ootstrap", re.compile(r"Bootstrap ?: Using ?(.*)"), _keep_bootstrap),
    Reader(" : Using", re.compile(r"NET/(?!\w*IB\w* )(\w+) : Using (.*<\d+>.*)"), _keep_sockets),
    Reader("NET/", re.compile(r"NET/(?:IB|gIB)\w* : Using(.*)"), _keep_devices),
    Reader(
        "Using network",
        re.compile(r"Using network (.+)"),
        lambda facts, process, message, match: _put_line(facts, process.networks, match[1].strip(), message),
    ),
    Reader("set by environment to", re.compile(r"\b(NCCL_\w+) set by environment to (.*)"), _keep_setting),
    Reader("NCCL_", re.compile(r"^(NCCL_(?:IB_HCA|SOCKET_IFNAME)) set to (.*)"), _keep_setting),
    Reader("version", re.compile(r"(?:NCCL|RCCL) version v?(\d+\.\d+(?:\.\d+)?)"), _keep_version),
    Reader("version", re.compile(r"^version v?(\d+\.\d+\.\d+)"), _keep_version),
    Reader("nccl==", re.compile(r"nccl==(\d+\.\d+\.\d+)"), _keep_version),
    Reader("Mismatched NCCL version", re.compile(r"Mismatched NCCL version.*"), _keep_mismatch),
    Reader("via", _PATH, _keep_channel),
    Reader("Connected all", re.compile(r"Connected all (?:rings|trees)"), _keep_connected),
    Reader("nranks", _START, _keep_start),
    Reader("nRanks", _COMMUNICATOR, _keep_communicator),
    Reader("Channel", _RING, _keep_ring),
    Reader("coll channels", re.compile(r"(?<!\d)(\d{1,6}) coll channels"), _keep_channels),
    Reader(
        "for HCA",
        re.compile(r"GPU Direct RDMA (?:\(.*?\) )?([eE]nabled|[dD]isabled) for HCA \d+ '([\w.-]+)"),
        lambda facts, process, _, match: _put(
            facts, process.gdr_of_hcas, match[2], match[1].lower() == "enabled", match[2]
        ),
    ),
    Reader(
        "for GPU",
        re.compile(r"GPU Direct RDMA (Enabled|Disabled) for GPU (\w+) / HCA (\w+) \(distance"),
        lambda facts, process, _, match: _put(
            facts, process.gdr_of_pairs, (match[2], match[3]), match[1] == "Enabled", match[0]
        ),
    ),
    Reader("GUID of", re.compile(r"NET/OFI GUID of ([\w.-]+):"), _keep_efa_name),
)
