"""Facts in NCCL's logs: processes, communicators and signs of faults, each limited in number."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.nccl_logs.nccl_lines import Evidence, LogSize

MAX_PROCESSES = 16_384
MAX_COMMUNICATORS = 1_024
MAX_NAMES = 256  # devices, interfaces, variables, networks of a process
MAX_PAIRS = 16_384
MAX_SIGHTINGS = 32
AMBIGUOUS = -1  # an end with devices of two communicators
MAX_KEPT_BYTES = 40 * 2**20  # of processes with their names, values and lines
PROCESS_BYTES = 1_600
_TEXT_BYTES = 200  # of each kept text in addition to its characters


class RdmaDevice(NamedTuple):
    """A port that NET/IB offers. NCCL merges ports with the same `device` into one device."""

    device: int
    name: str
    link: str


class LoggedVariable(NamedTuple):
    """The value of a variable as NCCL logged it."""

    value: str
    evidence: Evidence


class Sighting(NamedTuple):
    """A line that is a sign of a fault, with the values in it."""

    host: str
    pid: str
    values: Mapping[str, str]
    evidence: Evidence
    warns: bool = False


ProcessKey = tuple[str, str, str]  # host, pid, and the file if there is no pid


@dataclass(slots=True)
class NcclProcess:
    """One process of a host.

    `file` has its first line, and `begin` and `end` are its first and last line there. At line `progress` it made its
    last connections. `networks` are the modules it chose. `direct` and `plain` are its channels with and without
    GPUDirect RDMA, by (module, device).
    """

    host: str
    pid: str
    file: str = ""
    begin: int = 0
    end: int = 0
    progress: int = 0
    version: str | None = None
    interfaces: dict[str, str] = field(default_factory=dict)  # of the bootstrap, with the address
    out_of_band: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, str] = field(default_factory=dict)
    devices: tuple[RdmaDevice, ...] = ()
    devices_line: Evidence | None = None
    networks: dict[str, Evidence] = field(default_factory=dict)
    settings: dict[str, LoggedVariable] = field(default_factory=dict)
    direct: dict[tuple[str, int], Evidence] = field(default_factory=dict)
    plain: dict[tuple[str, int], Evidence] = field(default_factory=dict)
    sends_direct: bool = False
    only_sends_plain: bool = True
    inside: dict[str, Evidence] = field(default_factory=dict)  # transports without a network: P2P, SHM, MNNVL
    channels: int = 0  # a bit for each number of a channel over a network
    gdr_of_hcas: dict[str, bool] = field(default_factory=dict)
    gdr_of_pairs: dict[tuple[str, str], bool] = field(default_factory=dict)
    communicators: dict[str, str] = field(default_factory=dict)  # pointer -> key
    started: Evidence | None = None
    gpu: int = -1  # the largest GPU number in brackets
    bus: str = ""  # PCI bus of the GPU in its first communicator

    @property
    def address(self) -> str:
        """The address of the bootstrap, or else of the first socket. Empty if no line names one."""
        named = (self.interfaces, self.out_of_band, self.sockets)
        return next((address for addresses in named for address in addresses.values() if address), "")


@dataclass
class Communicator:
    """One communicator. `num_nodes` is None until a line gives it. `ranks` holds the ranks in the log."""

    num_ranks: int
    num_nodes: int | None = None
    local_ranks: int | None = None
    ranks: dict[int, ProcessKey] = field(default_factory=dict)
    completed: int = 0
    channels: int | None = None
    channels_line: Evidence | None = None


class Ends(NamedTuple):
    """The devices and hosts at both ends of a channel between two ranks, if the log has them."""

    sent_by: int | None
    sender_host: str
    received_by: int | None
    receiver_host: str


@dataclass
class LogFacts:
    """All facts of the logs that were read together."""

    processes: dict[ProcessKey, NcclProcess] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    pairs: dict[tuple[str, str, int, int], Ends] = field(default_factory=dict)  # communicator, channel, from, to
    inside_ranks: set[int] = field(default_factory=set)  # ranks with channels without a network
    pair_line: Evidence | None = None
    signs: dict[str, list[Sighting]] = field(default_factory=dict)
    versions: dict[str, Evidence] = field(default_factory=dict)
    files: dict[str, LogSize] = field(default_factory=dict)
    left_out: int = 0  # messages of processes and communicators beyond the limits
    kept_bytes: int = 0
    restarts: dict[str, int] = field(default_factory=dict)  # file -> first line to read

    def has_room(self, *texts: str, size_bytes: int = 0) -> bool:
        """Reserve memory for texts. Return False and count a message as left out once the limit is reached."""
        self.kept_bytes += size_bytes + sum(_TEXT_BYTES + sys.getsizeof(text) for text in texts)
        self.left_out += self.kept_bytes > MAX_KEPT_BYTES
        return self.kept_bytes <= MAX_KEPT_BYTES

    def process_of(self, sighting: Sighting) -> NcclProcess | None:
        """Return the process that wrote the line."""
        return self.processes.get((sighting.host, sighting.pid, "" if sighting.pid else sighting.evidence.file))

    def went_on(self, sighting: Sighting) -> bool:
        """Return True if the process made connections after this line and logged no fatal error after it."""
        process, (file, line, _) = self.process_of(sighting), sighting.evidence
        traces = (each for each in self.signs.get("fatal", ()) if self.process_of(each) is process)
        failed = any(each.evidence.file == file and each.evidence.line > line for each in traces)
        return process is not None and process.file == file and process.progress > line and not failed

    def first(self, *signs: str) -> Sighting | None:
        """Return the first sighting of the first of these signs in the logs."""
        return next((self.signs[sign][0] for sign in signs if self.signs.get(sign)), None)

    def note(self, sign: str, sighting: Sighting) -> None:
        """Keep the first and the last lines of a sign."""
        kept = self.signs.setdefault(sign, [])
        if len(kept) == MAX_SIGHTINGS:
            del kept[MAX_SIGHTINGS // 2]
        kept.append(sighting)

    def line(self, *signs: str) -> Evidence | None:
        """Return the line of the first sighting of the first of these signs in the logs."""
        sighting = self.first(*signs)
        return sighting.evidence if sighting else None

    def setting(self, variable: str, *values: str, host: str = "") -> LoggedVariable | None:
        """Return a setting of a variable, limited to processes of `host` and to `values` if these are given."""
        processes = (each for each in self.processes.values() if not host or each.host in (host, ""))
        settings = (each.settings[variable] for each in processes if variable in each.settings)
        return next((each for each in settings if not values or each.value in values), None)

    @property
    def completed(self) -> bool:
        """True if a communicator of the largest size was made. Smaller ones may be made before it fails."""
        sizes = [each.num_ranks for each in self.communicators.values() if each.completed]
        return self.largest is not None and self.largest.num_ranks in sizes

    @property
    def largest(self) -> Communicator | None:
        """The communicator with the most ranks."""
        return max(self.communicators.values(), key=lambda each: each.num_ranks, default=None)
