"""Facts that NCCL's log states: of each process, of each communicator, and signs of faults; bounded in number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.nccl_logs.nccl_lines import Evidence, LogSize

MAX_PROCESSES = 16_384
MAX_COMMUNICATORS = 1_024
MAX_NAMES = 128  # devices, interfaces, variables, networks of a process
MAX_PAIRS = 65_536
MAX_SIGHTINGS = 32


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


@dataclass
class NcclProcess:
    """One process of a host. `networks`: modules it chose, `plain` and `direct`: channels by (module, device)."""

    host: str
    pid: str
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
    inside: dict[str, Evidence] = field(default_factory=dict)  # transports inside the host: P2P, SHM
    gdr_of_hcas: dict[str, bool] = field(default_factory=dict)
    gdr_of_pairs: dict[tuple[str, str], bool] = field(default_factory=dict)
    communicators: dict[str, str] = field(default_factory=dict)  # pointer -> key
    started: Evidence | None = None

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
    ranks: dict[int, str] = field(default_factory=dict)  # rank -> host
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

    processes: dict[tuple[str, str, str], NcclProcess] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    pairs: dict[tuple[int, int, int], Ends] = field(default_factory=dict)  # (channel, from rank, to rank)
    pair_line: Evidence | None = None
    signs: dict[str, list[Sighting]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, Evidence] = field(default_factory=dict)
    files: dict[str, LogSize] = field(default_factory=dict)
    left_out: int = 0  # messages of processes and communicators beyond the bounds

    def first(self, *signs: str) -> Sighting | None:
        """Return the first sighting of the first of these signs that was seen."""
        return next((self.signs[sign][0] for sign in signs if self.signs.get(sign)), None)

    def note(self, sign: str, sighting: Sighting) -> None:
        """Count a sign, and keep the first lines of it."""
        self.counts[sign] = self.counts.get(sign, 0) + 1
        kept = self.signs.setdefault(sign, [])
        if len(kept) < MAX_SIGHTINGS:
            kept.append(sighting)

    def line(self, *signs: str) -> Evidence | None:
        """Return the line of the first sighting of the first of these signs that was seen."""
        sighting = self.first(*signs)
        return sighting.evidence if sighting else None

    def setting(self, variable: str, *values: str) -> LoggedVariable | None:
        """Return a setting of a variable by any process, to one of `values` if there are any."""
        settings = (each.settings[variable] for each in self.processes.values() if variable in each.settings)
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
