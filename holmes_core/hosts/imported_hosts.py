"""Hosts imported from another program's list of machines, with hints for hosts.yaml, and the machines left out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import NAME_LENGTH, NAME_PATTERN
from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import MAX_YAML_BYTES
from holmes_core.units import format_names

MAX_HOSTS = 4_500  # hosts.yaml with all their hints can still be read
MAX_NAMES = 8  # shown in one line
MAX_REASONS = 5
MAX_CHARACTERS = 60

_HEADER = """\
# From {source}, by `holmes hosts`. Users, ports and keys come from ~/.ssh/config; `python:` and more may be added.
# `hints:` are what labels say. `holmes probe` finds the clusters by itself, and reports labels that contradict it.
"""


@dataclass(frozen=True)
class Machine:
    """One machine as another program lists it."""

    name: str
    address: str | None = None
    has_gpus: bool | None = None  # None if the list does not show it
    unfit: str | None = None  # the reason why it cannot be used now, `DRAIN`
    network: tuple[str, ...] = ()  # switches above it, nearest first
    nvlink: str | None = None
    fabric: str | None = None


@dataclass(frozen=True)
class Imported:
    """The hosts for hosts.yaml, and one line per reason for the machines that are left out."""

    hosts: HostsFile
    left_out: tuple[str, ...]


def take_machines(machines: Iterable[Machine], source: str) -> Imported:
    """Return the usable machines. Those without GPUs are left out if others are known to have some.

    Raises:
        HolmesError: A name or address is impossible, a name is listed twice, or no machine is left. It names `source`.
    """
    machines = tuple(machines)
    some_have_gpus = any(machine.has_gpus for machine in machines)
    taken, seen = [], set()
    unfit: dict[str, list[str]] = {}
    for machine in machines:
        _check(machine, source)
        if machine.name in seen:
            raise HolmesError(f"{source}: {machine.name} is listed twice", "pass the output of one command")
        seen.add(machine.name)
        reason = machine.unfit or ("no GPUs" if some_have_gpus and machine.has_gpus is False else None)
        if reason:
            unfit.setdefault(reason[:MAX_CHARACTERS], []).append(machine.name)
        else:
            taken.append(_entry(machine))
    left_out = tuple(f"{format_names(names, MAX_NAMES)}: {reason}" for reason, names in unfit.items())
    if not taken:
        shown = "; ".join(left_out[:MAX_REASONS]) + ("; ..." if len(left_out) > MAX_REASONS else "")
        raise HolmesError(f"{source}: no machine that can be used: {shown or 'it lists none'}", "check the command")
    if len(taken) > MAX_HOSTS:
        raise HolmesError(f"{source}: {len(taken)} hosts; hosts.yaml holds {MAX_HOSTS}", "import them in parts")
    return Imported(parse(HostsFile, {"hosts": taken}, source), left_out)


def hosts_yaml(hosts: HostsFile, source: str) -> str:
    """Return the text of hosts.yaml, with its source in the header.

    Raises:
        HolmesError: The text would be too large.
    """
    data = {"hosts": [_plain(entry) for entry in hosts.hosts]}
    named = re.sub(r"[^ -~]", "?", source)
    text = _HEADER.format(source=named) + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)
    if len(text.encode()) > MAX_YAML_BYTES:
        raise HolmesError(f"{source}: hosts.yaml would have {len(text.encode())} bytes", "import the hosts in parts")
    return text


def _plain(entry: HostEntry) -> object:
    data = entry.model_dump(mode="json", exclude_defaults=True)
    return data if len(data) > 1 else entry.name


def _entry(machine: Machine) -> dict[str, object]:
    """Return the machine as an entry of hosts.yaml, without unknown values."""
    hints = _known(network=machine.network, nvlink=machine.nvlink, fabric=machine.fabric)
    return _known(name=machine.name, address=machine.address, hints=hints)


def _known(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value}


def _check(machine: Machine, source: str) -> None:
    """Check that the name and the address are possible; an address may come from the machine's own agent.

    Raises:
        HolmesError: One of them is impossible.
    """
    if len(machine.name) > NAME_LENGTH or not re.fullmatch(NAME_PATTERN, machine.name):
        raise HolmesError(
            f"{source}: {machine.name[:MAX_CHARACTERS]!r} is not a valid host name", "take that machine out of the list"
        )
    address = machine.address
    if address is None or re.fullmatch(NAME_PATTERN, address):
        return
    hint = "correct it where the machine is described, or take it out of the list"
    try:
        has_scope = bool(getattr(ipaddress.ip_address(address), "scope_id", None))
    except ValueError:
        what = f"{source}: {machine.name}: {address[:MAX_CHARACTERS]!r} is not an address"
        raise HolmesError(what, hint) from None
    if has_scope:  # the scope names one of the machine's own interfaces, and may hold any text
        what = f"{source}: {machine.name}: address {address[:MAX_CHARACTERS]!r} holds on that machine alone"
        raise HolmesError(f"{what}: it has a scope behind `%`", hint)
