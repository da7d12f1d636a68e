"""Facts that NCCL's log states: of each process, of each communicator, and signs of faults; bounded in number."""

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
AMBIGUOUS = -1  # an end that has devices of two communicators
MAX_KEPT_BYTES = 40 * 2**20  # of processes, with all their names, values and lines
PROCESS_BYTES = 1_600
_TEXT_BYTES = 200  # of one that is kept, without its characters: its place, its objects


class RdmaDevice(NamedTuple):
    """A port that NET/IB offers. Ports with one `device` are merged into one device of NCCL's."""

    device: int
    name: str
    link: str


class LoggedVariable(NamedTuple):
    """The value of a variable, as NCCL logged it."""

    value: str
    evidence: Evidence


class Sighting(NamedTuple):
    """A line that is a sign of a fault, with the values read from it."""

    host: str
    pid: str
    values: Mapping[str, str]
    evidence: Evidence
    warns: bool = False


ProcessKey = tuple[str, str, str]  # host, pid, and the file where there is no pid


@dataclass(slots=True)
class NcclProcess:
    """One process of a host. `networks`: modules it chose, `plain` and `direct`: channels by (module, device).

    `file` is that of its first line, `begin` and `end` are its first and last line there. At line `progress` its
    last connections were made or set up.
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
    channels: int = 0  # bits of the numbers of those over a network
    gdr_of_hcas: dict[str, bool] = field(default_factory=dict)
    gdr_of_pairs: dict[tuple[str, str], bool] = field(default_factory=dict)
    communicators: dict[str, str] = field(default_factory=dict)  # pointer -> key
    started: Evidence | None = None
    gpu: int = -1  # the largest number in brackets
    bus: str = ""  # of the GPU of its first communicator

    @property
    def address(self) -> str:
        """The address of the bootstrap, or else of its first socket; empty if no line names one."""
        named = (self.interfaces, self.out_of_band, self.sockets)
        return next((address for addresses in named for address in addresses.values() if address), "")


@dataclass
class Communicator:
    """One communicator. `num_nodes` is None until a line says it; `ranks` are those in the log."""

    num_ranks: int
    num_nodes: int | None = None
    local_ranks: int | None = None
    ranks: dict[int, ProcessKey] = field(default_factory=dict)
    completed: int = 0
    channels: int | None = None
    channels_line: Evidence | None = None


class Ends(NamedTuple):
    """Both ends of a channel between two ranks: the device and host of either, where the log has them."""

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
    inside_ranks: set[int] = field(default_factory=set)  # at either end of channels without a network
    pair_line: Evidence | None = None
    signs: dict[str, list[Sighting]] = field(default_factory=dict)
    versions: dict[str, Evidence] = field(default_factory=dict)
    files: dict[str, LogSize] = field(default_factory=dict)
    left_out: int = 0  # messages of processes and communicators beyond the bounds
    kept_bytes: int = 0
    restarts: dict[str, int] = field(default_factory=dict)  # file -> first line to read

    def has_room(self, *texts: str, size_bytes: int = 0) -> bool:
        """Take room for texts, or count them as left out."""
        self.kept_bytes += size_bytes + sum(_TEXT_BYTES + sys.getsizeof(text) for text in texts)
        self.left_out += self.kept_bytes > MAX_KEPT_BYTES
        return self.kept_bytes <= MAX_KEPT_BYTES

    def process_of(self, sighting: Sighting) -> NcclProcess | None:
        """Return the process that wrote the line."""
        return self.processes.get((sighting.host, sighting.pid, "" if sighting.pid else sighting.evidence.file))

    def went_on(self, sighting: Sighting) -> bool:
        """Return True if the process made connections after this line, and no error is traced after it."""
        process, (file, line, _) = self.process_of(sighting), sighting.evidence
        traces = (each for each in self.signs.get("fatal", ()) if self.process_of(each) is process)
        failed = any(each.evidence.file == file and each.evidence.line > line for each in traces)
        return process is not None and process.file == file and process.progress > line and not failed

    def first(self, *signs: str) -> Sighting | None:
        """Return the first sighting of the first of these signs that was seen."""
        return next((self.signs[sign][0] for sign in signs if self.signs.get(sign)), None)

    def note(self, sign: str, sighting: Sighting) -> None:
        """Keep the first lines of a sign, and the last ones."""
        kept = self.signs.setdefault(sign, [])
        if len(kept) == MAX_SIGHTINGS:
            del kept[MAX_SIGHTINGS // 2]
        kept.append(sighting)

    def line(self, *signs: str) -> Evidence | None:
        """Return the line of the first sighting of the first of these signs that was seen."""
        sighting = self.first(*signs)
        return sighting.evidence if sighting else None

    def setting(self, variable: str, *values: str, host: str = "") -> LoggedVariable | None:
        """Return a setting of a variable by any process, or one of `host`, to one of `values` if there are any."""
        processes = (each for each in self.processes.values() if not host or each.host in (host, ""))
        settings = (each.settings[variable] for each in processes if variable in each.settings)
        return next((each for each in settings if not values or each.value in values), None)

    @property
    def completed(self) -> bool:
        """True if a communicator of the largest size was made: smaller ones may be, before that one fails."""
        sizes = [each.num_ranks for each in self.communicators.values() if each.completed]
        return self.largest is not None and self.largest.num_ranks in sizes

    @property
    def largest(self) -> Communicator | None:
        """The communicator of most ranks."""
        return max(self.communicators.values(), key=lambda each: each.num_ranks, default=None)
