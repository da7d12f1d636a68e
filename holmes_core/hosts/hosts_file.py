"""hosts.yaml: the machines to probe and the access to them. Only the names are required."""

from __future__ import annotations

import getpass
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import NAME_LENGTH, NAME_PATTERN, expand_pattern, is_pattern
from holmes_core.hosts.rail_pattern import checked_rail_pattern
from holmes_core.records.access import Access, Container, OneLine, Program, TransportName
from holmes_core.records.inventory import Hints
from holmes_core.records.link import IN_THE_CLEAR, Security
from holmes_core.records.record import Record
from holmes_core.records.record_file import read_user_file
from holmes_core.records.ssh_names import SshHost, SshUser
from holmes_runtime.config.trainer_config import SHARED

MAX_TRUNK_GBPS = 1e6

Section = TypeVar("Section", bound=Record)


def _is_no_networks(name: str) -> str:
    if name == SHARED:
        raise ValueError(f"{SHARED} is the network between clusters, so no cluster may have this name")
    return name


Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
NotShared = AfterValidator(_is_no_networks)
RailPatterns = Annotated[tuple[Annotated[str, AfterValidator(checked_rail_pattern)], ...], Field(min_length=1)]
GpuIndices = tuple[Annotated[int, Field(ge=0, lt=1024, strict=True)], ...]


class HostEntry(Record):
    """One host of hosts.yaml. Missing keys are taken from the top of the file, then from the SSH configuration."""

    name: Name
    """Name of the host on every screen, and for SSH unless `address` is set. A pattern stands for several hosts.
    Example: "node[01-16]\""""
    address: SshHost | None = None
    """Address for SSH, or Slurm's name for the node; not set: `name`. With a pattern of names: a pattern of as many
    addresses. Example: 10.0.0.1"""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """As at the top of the file, for this host. Example: 2222"""
    user: SshUser | None = None
    """As at the top of the file, for this host. Example: ubuntu"""
    identity_file: str | None = None
    """As at the top of the file, for this host. Example: ~/.ssh/id_ed25519"""
    python: Program | None = None
    """As at the top of the file, for this host. Example: /opt/conda/bin/python"""
    activate: OneLine | None = None
    """As at the top of the file, for this host. Example: source /opt/conda/bin/activate train"""
    container: Container | None = None
    """As at the top of the file, for this host."""
    cluster: Annotated[Name, NotShared] | None = None
    """Name of the cluster that the host is pinned to. Example: east"""
    speeds_gbps: dict[str, Annotated[float, Field(gt=0)]] = {}
    """As at the top of the file, for this host. Example: {eth0: 25}"""
    rails: RailPatterns | None = None
    """As at the top of the file, for this host. Example: ["mlx5_[0-3]"]"""
    gpus: GpuIndices | None = None
    """As at the top of the file, for this host. Example: [0, 1, 2, 4]"""
    hints: Hints = Hints()


class StatedTrunk(Record):
    """Line rate of a trunk between two clusters, or of the uplink of one, in each direction, for all hosts together."""

    between: tuple[Name, Name] | None = None
    """The two clusters of a trunk. Example: [east, west]"""
    cluster: Name | None = None
    """The cluster of an uplink, shared by all traffic that leaves or enters it. Example: east"""
    gbps: Annotated[float, Field(gt=0, le=MAX_TRUNK_GBPS, strict=True)]
    """Gbit/s in each direction. Example: 100"""

    @field_validator("between")
    @classmethod
    def _clusters_are_two(cls, between: tuple[str, str] | None) -> tuple[str, str] | None:
        if between is not None and between[0] == between[1]:
            raise ValueError(
                f"cluster {between[0]} is named twice; a trunk joins two clusters, `cluster` has an uplink"
            )
        return between

    @model_validator(mode="after")
    def _is_a_trunk_or_an_uplink(self) -> StatedTrunk:
        if (self.between is None) is (self.cluster is None):
            raise ValueError("name either `between`, the two clusters of a trunk, or `cluster`, that of an uplink")
        return self

    @property
    def clusters(self) -> tuple[str, ...]:
        """The two clusters of a trunk, or the one of an uplink."""
        return self.between or (str(self.cluster),)


def _entry(value: Any) -> Any:
    """Return a bare string as the entry of the host with that name."""
    return {"name": value} if isinstance(value, str) else value


def expand_entries(entries: Iterable[Any]) -> Iterator[Any]:
    """Yield the entries of `hosts:`. An entry whose name is a pattern is repeated for every host of the pattern.

    `address` may be a pattern of as many addresses, taken in order. A malformed entry is yielded, and refused later.

    Raises:
        HolmesError: A pattern is malformed.
    """
    for entry in map(_entry, entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and is_pattern(name):
            names = expand_pattern(name)
            addresses = _addresses(name, len(names), entry.get("address"))
            yield from ({**entry, "name": one, "address": at} for one, at in zip(names, addresses, strict=True))
        else:
            yield entry


def _addresses(name: str, count: int, address: Any) -> tuple[str | None, ...]:
    """Return one address for each of the `count` hosts of pattern `name`; None for each if there are none."""
    if address is None:
        return (None,) * count
    addresses = expand_pattern(str(address))
    if len(addresses) != count:
        what = f"address {address} gives {len(addresses)} for the {count} hosts of {name}"
        raise HolmesError(what, "write an address pattern of as many, such as 10.0.0.[1-16], or leave it out")
    return addresses


class HostsFile(Record):
    """The whole of hosts.yaml: defaults at the top, then the hosts."""

    transport: TransportName = "ssh"
    """ssh; slurm: steps of this Slurm job; local: all hosts are this machine. Example: slurm"""
    ssh_config: str | None = None
    """SSH's configuration file, relative to this file's folder; not set: ~/.ssh/config. Example: ./ssh_config"""
    user: SshUser | None = None
    """User for SSH; not set: from SSH's configuration, else yours. Example: ubuntu"""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port for SSH; not set: from SSH's configuration, else 22. Example: 2222"""
    identity_file: str | None = None
    """Private key for SSH, relative to this file's folder; not set: the one in SSH's configuration.
    Example: ~/.ssh/id_ed25519"""
    python: Program | None = None
    """Python with torch on the hosts, found in PATH or given by its full path; not set: python3, and on this machine
    the one that runs Holmes. Example: /opt/conda/bin/python"""
    activate: OneLine | None = None
    """A line of shell that runs before Python. Example: source /opt/conda/bin/activate train"""
    container: Container | None = None
    speeds_gbps: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Line rates in Gbit/s by netdev or RDMA device, for those that tools report wrongly or not at all.
    Example: {eth0: 25}"""
    rails: RailPatterns | None = None
    """RDMA ports that carry the job, if the probe would choose others. Example: ["mlx5_[0-3]"]"""
    gpus: GpuIndices | None = None
    """GPUs that the job uses, by nvidia-smi's numbers; not set: all except display cards and much smaller ones. An
    empty list: none, and no slots on CPUs either. Example: [0, 1, 2, 4]"""
    hosts: tuple[Annotated[HostEntry, BeforeValidator(_entry)], ...] = Field(min_length=1)
    """Machines to probe, each with keys or only a name. Example: ["node[01-16]"]"""
    trunks: tuple[StatedTrunk, ...] = ()
    security: Security = IN_THE_CLEAR

    @field_validator("hosts", mode="before")
    @classmethod
    def _patterns_are_expanded(cls, hosts: Any) -> Any:
        try:
            return tuple(expand_entries(hosts)) if isinstance(hosts, (list, tuple)) else hosts
        except HolmesError as error:
            raise ValueError(f"{error.what}; {error.hint}") from None

    @field_validator("hosts")
    @classmethod
    def _names_are_unique(cls, hosts: tuple[HostEntry, ...]) -> tuple[HostEntry, ...]:
        counts = Counter(host.name for host in hosts)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"host {twice[0]} is listed twice")
        return hosts

    @field_validator("trunks")
    @classmethod
    def _trunks_are_one_for_two_clusters(
        cls, trunks: tuple[StatedTrunk, ...], info: ValidationInfo
    ) -> tuple[StatedTrunk, ...]:
        seen: set[frozenset[str]] = set()
        pinned = {host.cluster for host in info.data.get("hosts", ())}
        for number, trunk in enumerate(trunks):
            key = f"{number}.{'between' if trunk.between else 'cluster'}"
            if frozenset(trunk.clusters) in seen:
                verb = "are" if trunk.between else "is"
                raise ValueError(f"{key}: {' and '.join(trunk.clusters)} {verb} listed twice")
            seen.add(frozenset(trunk.clusters))
            unknown = [name for name in trunk.clusters if name not in pinned]
            if unknown and pinned and None not in pinned:  # with every host pinned, no other cluster can be found
                raise ValueError(f"{key}: no host is pinned to cluster {unknown[0]}")
        return trunks

    @field_validator("security")
    @classmethod
    def _hub_is_a_host(cls, security: Security, info: ValidationInfo) -> Security:
        names = [host.name for host in info.data.get("hosts", ())]
        if names and security.tunnel_hub is not None and security.tunnel_hub not in names:
            raise ValueError(f"tunnel_hub: {security.tunnel_hub!r} is not among `hosts`")
        return security

    def access(self, entry: HostEntry) -> Access:
        """Return the access to `entry`: its own settings, then the file's."""
        return Access(
            transport=self.transport,
            address=entry.address,
            port=entry.port or self.port,
            user=entry.user or self.user or (getpass.getuser() if self.transport != "ssh" else None),
            identity_file=entry.identity_file or self.identity_file,
            ssh_config=self.ssh_config,
            python=entry.python or self.python or self._usual_python(entry),
            activate=entry.activate or self.activate,
            container=entry.container or self.container,
        )

    def _usual_python(self, entry: HostEntry) -> str:
        """Return the default Python: this process's own on this machine, unless a shell line or container has one."""
        prepared = entry.activate or self.activate or entry.container or self.container
        return sys.executable if self.transport == "local" and prepared is None else "python3"


def read_hosts_file(path: Path) -> HostsFile:
    """Read hosts.yaml, with relative paths taken from the file's own folder."""
    hosts = read_user_file(HostsFile, path)
    entries = tuple(_with_full_paths(entry, ("identity_file",), path, f"hosts.{entry.name}.") for entry in hosts.hosts)
    return _with_full_paths(hosts, ("ssh_config", "identity_file"), path).model_copy(update={"hosts": entries})


def _with_full_paths(record: Section, keys: Sequence[str], path: Path, prefix: str = "") -> Section:
    """Return the record with absolute paths for the files that `keys` name, which must exist."""
    updates = {}
    for key in keys:
        value = getattr(record, key)
        if value is not None:
            full = path.parent.absolute() / Path(value).expanduser()
            if not full.exists() or full.is_dir():
                what = "a folder, not a file" if full.is_dir() else "no such file"
                raise HolmesError(f"{path}: {prefix}{key}: {value}: {what}", "correct the path, or leave the key out")
            updates[key] = str(full)
    return record.model_copy(update=updates)
