"""The dry run: all that a launch would send and start, as a summary, or exactly as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

from holmes_cli.screen.plan_tables import count
from holmes_cli.screen.terminal import out, print_out
from holmes_core.records.plan import TUNNEL_NETDEV, EnvironmentVariable, Plan
from holmes_core.units import format_bytes, format_names
from launcher.prepare.bundle import NodeBundle, Parcel, as_bytes

MAX_NAMED = 4
WIDTH = 100
_INDENTED: dict[str, Any] = {
    "initial_indent": "  ",
    "subsequent_indent": "      ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
Variable = tuple[str, str, str]


def show_bundles(bundles: Sequence[NodeBundle], plan: Plan) -> None:
    """Print the files of the nodes, variables with values and reasons, and the commands that start the agents.

    Secrets, and values from job.yaml, are not shown.
    """
    first, port = plan.nodes[0], plan.job.master_port
    print_out(f"{count(plan.world_size, 'rank')} on {count(len(plan.nodes), 'host')}; nothing was touched")
    print_out(f"rendezvous: {first.host} {first.shared_address}, the first free port from {port} on")
    runtime, of_plan, *own = bundles[0].parcels
    print_out(
        f"sent to every host that does not have it yet: the runtime, {_size(runtime)}; the plan, {_size(of_plan)}:"
    )
    print_out(f"  {', '.join(of_plan.files)}")
    for code in own:
        print_out(f"  and the code of {plan.job.launch.code}: {_size(code)}")
    most = max(_bytes(bundle.files) for bundle in bundles)
    print_out(
        f"sent to each host its own, as to {first.host}: {', '.join(bundles[0].files)}; at most {format_bytes(most)}"
    )
    for owners, variables in _variables(bundles, plan).items():
        print_out(f"environment of {'all hosts' if len(owners) == len(bundles) else _hosts(owners)}:")
        for name, value, reason in variables:
            print_out(fill(f"{name}={value}  # {reason}", min(WIDTH, out.width), **_INDENTED))
    for hosts, bundle in _ways(bundles):
        print_out(f"started on {_hosts(hosts)} by\n$ {bundle.start_command}")
    print_out("`--dry-run --json` prints every file and command of every host")
    print_out("as plain files, for other launchers too: holmes emit plan.json --to files -o DIR")


def show_tunnel(bundles: Sequence[NodeBundle], hub: str | None) -> None:
    """Print the commands of the agents that hold a tunnel of islands, and the needs of their hosts and its hub."""
    print_out(
        f"tunnel: {TUNNEL_NETDEV} on {count(len(bundles), 'host')}, for the whole run, held by an agent without ranks"
    )
    port = f"UDP port 51820 open on its hub, {hub}" if hub else "UDP from 51820 open"
    print_out(f"each needs wg and ip, WireGuard in its kernel or wireguard-go, root or `sudo -n`, and {port}")
    for hosts, bundle in _ways(bundles):
        print_out(f"started on {_hosts(hosts)} by\n$ {bundle.start_command}")


def bundles_as_json(bundles: Sequence[NodeBundle], plan: Plan) -> None:
    """Print all files and commands exactly: a line per parcel, then a line per node; secrets are null."""
    for parcel in bundles[0].parcels:
        _json({"parcel": parcel.digest, "files": parcel.files, "commands": [parcel.unpack_command]})
    for bundle in bundles:
        files = {name: None if name in bundle.secrets else text for name, text in bundle.files.items()}
        commands = [bundle.hold_command, bundle.start_command, bundle.remove_command]
        environment = {variable.name: variable.value for variable in _planned(bundle, plan)}
        _json({"node": bundle.node.host, "environment": environment, "files": files, "commands": commands})


def _variables(bundles: Sequence[NodeBundle], plan: Plan) -> dict[tuple[str, ...], list[Variable]]:
    """Return name, value and reason of variables, by the hosts that share them."""
    users, found = plan.job.launch, dict[Variable, list[str]]()
    named = [(name, "...", "launch.environment in job.yaml") for name in sorted(users.environment)]
    named += [(name, "...", f"launch.secrets in job.yaml: {file}") for name, file in sorted(users.secrets.items())]
    for bundle in bundles:
        for variable in (*((each.name, each.value, each.reason) for each in _planned(bundle, plan)), *named):
            found.setdefault(variable, []).append(bundle.node.host)
    by_hosts: dict[tuple[str, ...], list[Variable]] = {}
    for variable, hosts in found.items():
        by_hosts.setdefault(tuple(hosts), []).append(variable)
    return by_hosts


def _planned(bundle: NodeBundle, plan: Plan) -> Iterator[EnvironmentVariable]:
    """Return the variables that the plan sets and the user does not."""
    users = {*plan.job.launch.environment, *plan.job.launch.secrets}
    return (variable for variable in bundle.node.environment if variable.name not in users)


def _ways(bundles: Sequence[NodeBundle]) -> Iterator[tuple[list[str], NodeBundle]]:
    """Yield the hosts whose Python starts in the same way, with the first of them."""
    alike: dict[object, list[NodeBundle]] = {}
    for bundle in bundles:
        access = bundle.node.access
        alike.setdefault((access.python, access.activate, access.container), []).append(bundle)
    for some in alike.values():
        yield [bundle.node.host for bundle in some], some[0]


def _hosts(hosts: Sequence[str]) -> str:
    return format_names(hosts, MAX_NAMED)


def _size(parcel: Parcel) -> str:
    return f"{count(len(parcel.files), 'file')}, {format_bytes(_bytes(parcel.files))}"


def _bytes(files: Mapping[str, str]) -> int:
    """Return the size before packing."""
    return sum(len(as_bytes(text)) for text in files.values())


def _json(what: dict[str, object]) -> None:
    out.file.write(json.dumps(what) + "\n")
