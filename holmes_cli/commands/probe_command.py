"""`holmes probe`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.show_inventory import show_differences, show_inventory
from holmes_cli.screen.show_rule import show_rule
from holmes_cli.screen.terminal import err, out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.hosts.host_lists import read_host_list
from holmes_core.hosts.host_pattern import expand_pattern
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.records.inventory import Inventory
from holmes_core.records.parse_record import parse
from holmes_core.records.record_file import read_file, write_atomically
from prober.audit import joined, refuses
from prober.catalogue import explain
from prober.differences import changes
from prober.islands.placing import Placing
from prober.islands.settle import Trial
from prober.links.link_audit import audit_links
from prober.links.links import measure_links
from prober.links.rdma_trials import try_open_pairs
from prober.probe import probe, replay
from prober.rules.rule import About
from prober.stated_trunks import with_measured

_USUAL = Path("inventory.json")


def probe_command(
    hosts: Annotated[
        str | None,
        typer.Argument(help="hosts.yaml, an MPI or DeepSpeed hostfile, or host names such as node[[01-16]]."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the inventory.", show_default=str(_USUAL))
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inventory as JSON instead of tables.")] = False,
    links: Annotated[
        bool, typer.Option("--links", help="Measure latency and bandwidth between sampled pairs.")
    ] = False,
    record: Annotated[Path | None, typer.Option("--record", help="Keep every raw output in this folder.")] = None,
    replay_folder: Annotated[
        Path | None, typer.Option("--replay", help="Read the outputs in this folder instead of asking hosts.")
    ] = None,
    diff: Annotated[Path | None, typer.Option("--diff", help="Show what changed since this inventory.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page with a picture.")] = None,
    rule: Annotated[
        str | None, typer.Option("--explain", help="Print what a rule such as NIC-PORT-DOWN checks; ask no host.")
    ] = None,
) -> None:
    """Ask every host for its GPUs and NICs, find the clusters, and say what is wrong."""
    if rule is not None:
        show_rule(_explained(rule, hosts))
        return
    older = read_file(Inventory, diff) if diff else None
    inventory = _replayed(replay_folder, hosts, links) if replay_folder else _probed(hosts, record, links)
    if links:
        inventory = _with_links(inventory)
    text = inventory.to_json()
    output = output or (_replay_output(text, as_json) if replay_folder else _USUAL)
    if output:
        write_atomically(output, text)
    if html:
        from holmes_cli.pages.inventory_page import inventory_page  # slow to import: it brings Jinja2

        write_atomically(html, inventory_page(inventory))
    if as_json:
        out.file.write(text)
    else:
        show_inventory(inventory)
        if older:
            show_differences(f"Changed since {diff}", changes(older, inventory))
        out.print(f"\ninventory: {output}\nnext: holmes plan job.yaml -i {output}", markup=False, soft_wrap=True)
    if refuses(inventory):
        raise typer.Exit(ANSWER_IS_NO)


def _explained(rule: str, hosts: str | None) -> Sequence[About]:
    if hosts is not None:
        raise HolmesError("--explain asks no host", "leave the hosts out, or leave out `--explain`")
    return explain(rule)


def _replayed(folder: Path, hosts: str | None, links: bool) -> Inventory:
    if hosts is not None or links:
        raise HolmesError("--replay asks no host", "leave the hosts and `--links` out, or leave out `--replay`")
    return replay(folder)


def _replay_output(text: str, as_json: bool) -> Path | None:
    """Where a replay is written that was not told where: nowhere if it is printed, and never over another inventory."""
    if as_json:
        return None
    if _USUAL.exists() and _USUAL.read_bytes() != text.encode():
        raise HolmesError(
            f"{_USUAL}: holds another inventory, perhaps of a live probe; --replay does not write over it",
            f"name the file to write: `-o replayed.json`, or `-o {_USUAL}` to write over it",
        )
    return _USUAL


def _probed(hosts: str | None, record: Path | None, links: bool) -> Inventory:
    if hosts is None:
        raise HolmesError("no hosts given", "`holmes probe hosts.yaml`, or `--replay DIR` for a recording")
    hosts_file = _hosts_file(hosts)
    count, done = len(hosts_file.hosts), 0
    with err.status(f"asking {count} hosts") as status:

        def progress(host: str, state: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of {count} hosts answered; {host}: {state}")

        def tried(inventory: Inventory, placing: Placing) -> Sequence[Trial]:
            """With --links, what facts leave open of the clusters."""
            return try_open_pairs(inventory, placing, lambda pair, verdict: status.update(f"{pair}: RDMA {verdict}"))

        return probe(hosts_file, progress, record, tried if links else None)


def _hosts_file(hosts: str) -> HostsFile:
    """A hosts.yaml, a plain host list, or host names on the command line."""
    path = Path(hosts)
    if path.suffix in (".yaml", ".yml", ".json"):
        return read_hosts_file(path)
    if path.is_file():
        return HostsFile(hosts=read_host_list(path))
    return parse(HostsFile, {"hosts": list(expand_pattern(hosts))}, hosts)


def _with_links(inventory: Inventory) -> Inventory:
    """The inventory with measured links and trunks, and what they and the tests themselves showed."""
    with err.status("measuring links") as status:
        measured = measure_links(inventory, lambda pair, state: status.update(f"{pair}: {state}"))
    inventory = with_measured(inventory, measured.trunks)
    found = (*inventory.findings, *measured.problems, *audit_links(inventory, measured.links))
    return inventory.model_copy(update={"links": tuple(measured.links), "findings": joined(found)})
