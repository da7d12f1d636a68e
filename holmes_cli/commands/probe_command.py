"""`holmes probe`."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.api import probe
from holmes_cli.screen.show_inventory import show_changes, show_inventory, show_rule
from holmes_cli.screen.terminal import err, out, print_out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.hosts.allocation import allocation_hosts, is_in_allocation
from holmes_core.hosts.host_lists import read_host_list
from holmes_core.hosts.host_pattern import expand_pattern
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.hosts.transport_option import hosts_reached_by
from holmes_core.measured_networks import measured_networks
from holmes_core.own_key import own_key
from holmes_core.records.inventory import Inventory, refuse_sketch
from holmes_core.records.parse_record import parse
from holmes_core.records.record_file import read_file, read_signed, signed_parts, write_atomically
from holmes_core.units import format_duration
from prober.anonymize import anonymize
from prober.differences import changes
from prober.findings.audit import refuses
from prober.findings.catalogue import explain
from prober.kept_links import WithKept, with_kept_links
from prober.links.link_estimate import estimate_s
from prober.probe import replay, script_to_run


def probe_command(
    hosts: Annotated[
        str | None,
        typer.Argument(help="hosts.yaml, an MPI or DeepSpeed hostfile, or host names such as node[01-16]."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write the inventory.", show_default="inventory.json, or HOLMES_INVENTORY"
        ),
    ] = None,
    allocation: Annotated[
        bool, typer.Option("--allocation", help="Probe this Slurm job's nodes; the default inside a job without hosts.")
    ] = False,
    via: Annotated[
        str | None, typer.Option("--via", metavar="slurm", help="Reach all hosts by steps of this Slurm job.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inventory as JSON instead of tables.")] = False,
    links: Annotated[
        bool, typer.Option("--links", help="Measure latency and bandwidth between sampled pairs.")
    ] = False,
    record: Annotated[Path | None, typer.Option("--record", help="Keep every raw output in this folder.")] = None,
    replay_folder: Annotated[
        Path | None, typer.Option("--replay", help="Read the recording, or the script's answers, in this folder.")
    ] = None,
    anonymized: Annotated[
        Path | None,
        typer.Option("--anonymize", help="Copy what --replay reads to this folder, without names and addresses."),
    ] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Print a shell script whose answers --replay reads; contact no host.")
    ] = False,
    diff: Annotated[Path | None, typer.Option("--diff", help="Show what changed since this inventory.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page with a picture.")] = None,
    rule: Annotated[
        str | None, typer.Option("--explain", help="Print what a rule such as NIC-PORT-DOWN checks; contact no host.")
    ] = None,
) -> None:
    """Ask every host for its GPUs and NICs, find the clusters, and report faults."""
    if rule is not None or script or anonymized is not None:
        _without_inventory(rule, anonymized, replay_folder, hosts)
        return
    older = _older(diff)
    if replay_folder:
        kept = WithKept(_replayed(replay_folder, hosts, links), None)
    else:
        inventory = _probed(_asked_hosts(hosts, allocation, via), record, links)
        kept = WithKept(inventory, None) if links else _with_kept(inventory, output or usual_inventory(), diff)
    inventory = kept.inventory
    text = inventory.to_json() if replay_folder else "".join(signed_parts(inventory))
    output = output or (_replay_output(inventory, as_json) if replay_folder else usual_inventory())
    if output and not (replay_folder and _holds(output, inventory)):
        write_atomically(output, text)
    if html:
        from holmes_cli.pages.inventory_page import inventory_page  # slow to import: it brings Jinja2

        write_atomically(html, inventory_page(inventory, time.time()))
    if as_json:
        out.file.write(text)
    else:
        show_inventory(inventory, time.time())
        if older:
            show_changes(str(diff), changes(older, inventory))
        for sentence in (kept.lost, unmeasured_sentence(inventory)):
            if sentence is not None:
                print_out(sentence)
        print_out(f"\ninventory: {output}\nnext: holmes plan job.yaml -i {output}")
    if refuses(inventory):
        raise typer.Exit(ANSWER_IS_NO)


def _without_inventory(rule: str | None, anonymized: Path | None, folder: Path | None, hosts: str | None) -> None:
    """Print a rule, copy a recording, or else print the script that others run."""
    option = "--explain" if rule is not None else "--anonymize" if anonymized is not None else "--script"
    if hosts is not None:
        raise HolmesError(f"{option} asks no host", f"leave the hosts out, or leave out `{option}`")
    if rule is not None:
        show_rule(explain(rule))
    elif anonymized is None:
        out.file.write(script_to_run())
    elif folder is None:
        raise HolmesError("--anonymize copies a recording", "name it: `--replay DIR`, from `holmes probe --record DIR`")
    else:
        anonymize(folder, anonymized)
        said = f"{anonymized}: without names and addresses; read it before you share it"
        print_out(said)


def _replayed(folder: Path, hosts: str | None, links: bool) -> Inventory:
    if hosts is not None or links:
        raise HolmesError("--replay asks no host", "leave the hosts and `--links` out, or leave out `--replay`")
    return replay(folder)


def _older(diff: Path | None) -> Inventory | None:
    """Return the inventory to compare with, if one is named. Raises HolmesError for a sketch."""
    if diff is None:
        return None
    older = read_file(Inventory, diff)
    refuse_sketch(older, diff)
    return older


def _with_kept(inventory: Inventory, output: Path, diff: Path | None) -> WithKept:
    """Add the links of this user's last probe: from the file to be replaced, or the one to compare with."""
    for path in (output, diff):
        if path is not None and path.is_file():
            with suppress(HolmesError):  # else it is written over, whatever it is
                signed = read_signed(Inventory, path)
                if signed.is_own and signed.record.sketch is None:
                    return with_kept_links(signed.record, inventory)
    return WithKept(inventory, None)


def unmeasured_sentence(inventory: Inventory) -> str | None:
    """Return a sentence that rates between clusters or hosts are nominal, with the time to measure them; None if
    measured."""
    known = measured_networks(inventory)
    wired = [each for each in inventory.clusters if each.fabric.kind != "loopback"]
    across = {frozenset({one.name, other.name}) for one, other in combinations(wired, 2)}
    inside = {frozenset({each.name}) for each in wired if len(each.hosts) > 1}
    seconds = estimate_s(inventory)
    if (across | inside) <= known or not seconds:
        return None
    where = "between clusters" if across - known else "between hosts"
    return f"rates {where} are nominal; `--links` measures them (about {format_duration(seconds)})"


def usual_inventory() -> Path:
    """Return the file that holds the inventory where no option names it."""
    return Path(os.environ.get("HOLMES_INVENTORY") or "inventory.json")


def _holds(path: Path, inventory: Inventory) -> bool:
    """Return True if the file holds that inventory, signed or not."""
    with suppress(HolmesError):
        return read_file(Inventory, path).digest() == inventory.digest()
    return False


def _replay_output(inventory: Inventory, as_json: bool) -> Path | None:
    """Return the output of a replay without `-o`: None if it is printed. Another inventory is never replaced."""
    if as_json:
        return None
    usual = usual_inventory()
    if usual.exists() and not _holds(usual, inventory):
        raise HolmesError(
            f"{usual}: holds another inventory, perhaps of a live probe; --replay does not overwrite it",
            f"name the file to write: `-o replayed.json`, or `-o {usual}` to overwrite it",
        )
    return usual


def _asked_hosts(hosts: str | None, allocation: bool, via: str | None) -> HostsFile:
    """Return the given hosts, reached as they say or by `via`; or the nodes of this Slurm job."""
    if allocation and hosts is not None:
        raise HolmesError("--allocation: the hosts are those of the job", "leave the hosts out, or `--via slurm`")
    if allocation or (hosts is None and is_in_allocation(os.environ)):
        return allocation_hosts(os.environ)
    if hosts is None:
        raise HolmesError("no hosts given", "`holmes probe hosts.yaml`, or `--replay DIR` for a recording")
    return hosts_reached_by(hosts_named(hosts), via)


def _probed(hosts_file: HostsFile, record: Path | None, links: bool) -> Inventory:
    own_key()  # fails here if no key can be made, before any host is asked
    with err.status(f"asking {len(hosts_file.hosts)} hosts") as status:
        return probe(hosts_file, links, record, status.update)


def hosts_named(hosts: str) -> HostsFile:
    """Read a hosts.yaml, a plain host list, or host names on the command line."""
    path = Path(hosts)
    if path.suffix in (".yaml", ".yml", ".json"):
        return read_hosts_file(path)
    if path.is_file():
        return HostsFile(hosts=read_host_list(path))
    return parse(HostsFile, {"hosts": list(expand_pattern(hosts))}, hosts)
