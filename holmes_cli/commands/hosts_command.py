"""`holmes hosts`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.terminal import print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.hosts.from_kubernetes import hosts_from_kubernetes
from holmes_core.hosts.from_slurm import hosts_from_slurm
from holmes_core.hosts.from_topograph import hosts_from_topograph
from holmes_core.hosts.imported_hosts import Imported, hosts_yaml
from holmes_core.hosts.slurm_topology import slurm_topology
from holmes_core.records.inventory import Inventory, refuse_sketch
from holmes_core.records.plain_data import MAX_JSON_BYTES, read_text
from holmes_core.records.record_file import read_file, write_atomically

_SOURCES: Mapping[str, Callable[[str, str], Imported]] = {
    "slurm": hosts_from_slurm,
    "kubernetes": hosts_from_kubernetes,
    "topograph": hosts_from_topograph,
}
_TOPOLOGY = "topology"


def hosts_command(
    file: Annotated[
        Path | None, typer.Argument(help="Input of --from, else standard input; for --to an inventory.json.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="slurm|kubernetes|topograph",
            help="`scontrol -o show nodes`, `kubectl get nodes -o json`, or topograph's JSON.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="topology", help="Write Slurm's topology.conf from an inventory.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write; never overwrites.", show_default="hosts.yaml, or topology.conf"
        ),
    ] = None,
) -> None:
    """Write hosts.yaml from the lists of Slurm, Kubernetes or topograph; or Slurm's topology.conf."""
    if (source is None) == (target is None):
        raise HolmesError("one of --from and --to is needed", "`scontrol -o show nodes | holmes hosts --from slurm`")
    if source is not None:
        _import(source, file, output or Path("hosts.yaml"))
    else:
        _export(str(target), file, output or Path("topology.conf"))


def _import(source: str, file: Path | None, output: Path) -> None:
    if source not in _SOURCES:
        raise HolmesError(f"--from {source}: not known", f"one of {', '.join(_SOURCES)}")
    _refuse_existing(output)
    name = "standard input" if file is None else str(file)
    imported = _SOURCES[source](_standard_input() if file is None else read_text(file, MAX_JSON_BYTES), name)
    write_atomically(output, hosts_yaml(imported.hosts, f"{source}, {name}"))
    for line in imported.left_out:
        print_err(f"left out: {line}")
    count = len(imported.hosts.hosts)
    print_out(f"hosts: {output} ({count})\nnext: holmes probe {output}")


def _export(target: str, file: Path | None, output: Path) -> None:
    if target != _TOPOLOGY:
        raise HolmesError(f"--to {target}: not known", f"`--to {_TOPOLOGY}`")
    if file is None:
        raise HolmesError("--to topology: no inventory given", "`holmes hosts --to topology inventory.json`")
    _refuse_existing(output)
    inventory = read_file(Inventory, file)
    refuse_sketch(inventory, file)
    write_atomically(output, slurm_topology(inventory))
    next_step = "beside slurm.conf with `TopologyPlugin=topology/tree`, then `scontrol reconfigure`"
    print_out(f"topology: {output}\nnext: {next_step}")


def _standard_input() -> str:
    """Return all of standard input. Raises HolmesError for a terminal, too much input or no text."""
    if sys.stdin.isatty():
        raise HolmesError("no FILE given", "name one, or pipe the other program's output into this command")
    data = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise HolmesError(f"standard input: more than {MAX_JSON_BYTES} bytes", "import the hosts in parts")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HolmesError(f"standard input: not text: byte {error.start} is not UTF-8", "give it as UTF-8") from None


def _refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise HolmesError(f"{output} exists", "choose another name with `-o`, or move that file away")
