"""The commands, files and settings that a plan or inventory brings along, shown if another user made it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holmes_core.records.access import Access
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Node, Plan
from holmes_runtime.config.trainable import first_adapters

ALL_RANKS = "all ranks"
HERE = "this machine"


@dataclass(frozen=True)
class TrustedPart:
    """One such part: `what` happens with `value` on the hosts `where`."""

    what: str
    value: str
    where: tuple[str, ...]


def brought_by_plan(plan: Plan) -> tuple[TrustedPart, ...]:
    """Return everything that a launch would run, read or set because the plan asks for it."""
    return (*_brought_by_nodes(plan.nodes), *_brought_by_job(plan.job))


def brought_by_islands(plan: IslandsPlan) -> tuple[TrustedPart, ...]:
    """Return the same for a plan of islands, with the hub of their tunnel."""
    hub = [node for nodes in plan.tunnel_nodes[len(plan.islands) :] for node in nodes]
    return (*(each for island in plan.islands for each in brought_by_plan(island)), *_brought_by_nodes(hub))


def _brought_by_nodes(nodes: Sequence[Node]) -> tuple[TrustedPart, ...]:
    found = _PartsByKind()
    for node in nodes:
        found.add_access(node.host, node.access)
    for node in nodes:
        for variable in node.environment:
            found.add("variable", f"{variable.name}={variable.value}", node.host)
    return found.all()


def brought_by_inventory(inventory: Inventory) -> tuple[TrustedPart, ...]:
    """Return the logins that a run with a new plan would use to reach the hosts."""
    found = _PartsByKind()
    for host in inventory.hosts:
        found.add_access(host.name, host.access)
    return found.all()


class _PartsByKind:
    """Parts by kind and value, each with its hosts, in order of arrival."""

    def __init__(self) -> None:
        self._where: dict[tuple[str, str], list[str]] = {}

    def add(self, what: str, value: str, host: str) -> None:
        self._where.setdefault((what, value), []).append(host)

    def add_access(self, host: str, access: Access) -> None:
        for what, value in _access_lines(access):
            self.add(what, value, f"{host} ({_target(host, access)})" if what == "log in" else host)

    def all(self) -> tuple[TrustedPart, ...]:
        return tuple(TrustedPart(what, value, tuple(where)) for (what, value), where in self._where.items())


def _access_lines(access: Access) -> Iterator[tuple[str, str]]:
    if access.transport != "ssh":
        yield "log in", "a shell on this machine" if access.transport == "local" else "a step of this Slurm job"
    else:
        files = (("key", access.identity_file), ("SSH configuration, which may run commands here", access.ssh_config))
        yield "log in", "; ".join(("SSH", *(f"{word} {file}" for word, file in files if file is not None)))
    if access.activate is not None:
        yield "shell line", access.activate
    yield "Python", access.python
    if access.container is not None:
        yield "container", " ".join((access.container.engine, access.container.image, *access.container.options))


def _target(host: str, access: Access) -> str:
    """Return `user@address:port`. Absent parts come from the SSH configuration."""
    user = f"{access.user}@" if access.user else ""
    return f"{user}{access.address or host}{f':{access.port}' if access.port else ''}"


def _brought_by_job(job: Job) -> Iterator[TrustedPart]:
    for name, given in job.launch.environment.items():
        value = f"{name} of this shell" if given is None else f"{name}={given}"
        yield TrustedPart("variable", value, (ALL_RANKS,))
    for what, value in (
        *(("secret", f"{name} = the text of {file} here") for name, file in job.launch.secrets.items()),
        *_paths(job),
    ):
        yield TrustedPart(what, value, (ALL_RANKS,))
    if job.launch.code is not None:
        yield TrustedPart("send", f"the folder {job.launch.code} here, as launch.code", (ALL_RANKS,))
    if job.trainer is not None and job.trainer.command:
        yield TrustedPart("trainer", shlex.join(job.trainer.command), (ALL_RANKS,))
    for when, words in (("at the end", job.launch.on_end), ("for what is slow", job.launch.on_verdict)):
        if words:
            yield TrustedPart(f"command {when}", shlex.join(words), (HERE,))


def _paths(job: Job) -> Iterable[tuple[str, str]]:
    data = job.data.paths if job.data is not None else ()
    checkpoint = (job.checkpoint.path,) if job.checkpoint is not None else ()
    return (
        *(("program", each) for each in (job.model.factory,) if each is not None),
        *(("read", each) for each in (*data, job.weights, first_adapters(job.trainable)) if each is not None),
        *(("write", each) for each in checkpoint),
    )
