"""`holmes probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.show_inventory import show_inventory
from holmes_cli.terminal import err, out
from holmes_core.errors import ANSWER_IS_NO
from holmes_core.hosts_file import read_hosts_file
from holmes_core.record import write_atomically
from prober.audit import refuses
from prober.probe import probe


def probe_command(
    hosts: Annotated[Path, typer.Argument(help="hosts.yaml: the machines and how to reach them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the inventory.")] = Path(
        "inventory.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the inventory as JSON instead of tables.")] = False,
) -> None:
    """Ask every host for its GPUs and NICs, find the clusters, and say what is wrong."""
    hosts_file = read_hosts_file(hosts)
    done = 0
    with err.status(f"asking {len(hosts_file.hosts)} hosts") as status:

        def progress(host: str, state: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of {len(hosts_file.hosts)} hosts answered; {host}: {state}")

        inventory = probe(hosts_file, progress)
    write_atomically(output, inventory.to_json())
    if as_json:
        out.file.write(inventory.to_json())
    else:
        show_inventory(inventory)
        out.print(f"\ninventory: {output}\nnext: holmes plan job.yaml -i {output}", markup=False, soft_wrap=True)
    if refuses(inventory):
        raise typer.Exit(ANSWER_IS_NO)
