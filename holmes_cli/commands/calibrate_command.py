"""`holmes calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holmes_cli.screen.terminal import err, print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.access import Access, LaunchSettings
from holmes_core.records.inventory import Host, Inventory, refuse_sketch
from holmes_core.records.job import Job
from holmes_core.records.record_file import read_signed, read_user_file
from launcher.nodes.measure_compute import measure_compute
from launcher.prepare.user_variables import read_user_variables

HERE = "this machine"


class _Slots(NamedTuple):
    """The host to measure, and the number of slots that compute there at once."""

    host: str
    access: Access
    at_once: int


def calibrate_command(
    job: Annotated[Path, typer.Argument(help="job.yaml: what to train.")] = Path("job.yaml"),
    inventory: Annotated[
        Path, typer.Option("--inventory", "-i", envvar="HOLMES_INVENTORY", help="The probe's inventory.")
    ] = Path("inventory.json"),
    host: Annotated[
        str | None, typer.Option("--host", help="Where to measure; default: the first host that answered.")
    ] = None,
) -> None:
    """Measure what a step costs on a host, and print the `compute:` section of job.yaml."""
    record = read_user_file(Job, job)
    if record.compute.emulate is not None:
        raise HolmesError(
            f"{job}: compute.emulate: its layers sleep, so there is nothing to measure",
            "leave `emulate` out to plan and train the model itself",
        )
    slots = _here(record) if host is None and not inventory.exists() else _there(record, inventory, host)
    only_model = record.model_copy(update={"launch": LaunchSettings(code=record.launch.code)})
    variables = read_user_variables(only_model, {}, job.absolute().parent)
    with err.status(f"measuring on {slots.host}"):
        lines = measure_compute(record, slots.host, slots.access, slots.at_once, variables)
    print_out(f"# measured on {slots.host}, {slots.at_once} at once")
    print_out(lines.rstrip("\n"))
    print_err(f"next: put this into {job}, then `holmes plan {job}`")


def _here(job: Job) -> _Slots:
    """Return this machine with this Python, for use before any probe."""
    access = Access(transport="local", python=sys.executable)
    return _Slots(HERE, access, job.slots_per_host if job.device == "cpu" else 1)


def _there(job: Job, path: Path, name: str | None) -> _Slots:
    """Return the host of that name, or the first that answered. Raises HolmesError if there is none."""
    signed = read_signed(Inventory, path)
    if not signed.is_own:
        raise HolmesError(
            f"{path}: was not made here by you, but decides how hosts are reached and what runs there",
            "`holmes probe hosts.yaml` makes your own",
        )
    refuse_sketch(signed.record, path)
    hosts = [each for each in signed.record.hosts if each.reachable]
    found = next((each for each in hosts if name in (None, each.name)), None)
    if found is None:
        answered = ", ".join(each.name for each in hosts) or "none"
        raise HolmesError(
            f"{path}: host {name or 'to measure on'}: not there, or it did not answer; {answered} did",
            "name another with `--host`, or run `holmes probe hosts.yaml` again",
        )
    return _Slots(found.name, found.access, _slots_of(job, found, hosts))


def _slots_of(job: Job, host: Host, hosts: list[Host]) -> int:
    """Return the GPUs of the host; on CPUs the processes of all hosts on the same machine."""
    if job.device == "cuda":
        return max(1, len(host.for_job().gpus))
    same = [each for each in hosts if host.boot_id is not None and each.boot_id == host.boot_id]
    return job.slots_per_host * max(1, len(same))
