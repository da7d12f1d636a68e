"""`holmes trust`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.terminal import print_err, print_out
from holmes_core.errors import ANSWER_IS_NO, HolmesError, HostError
from holmes_core.hosts.host_pattern import expand_pattern
from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.records.access import Access
from holmes_core.remote.host_keys import HostKey, add_host_key, offered_key


def trust_command(
    hosts: Annotated[list[str], typer.Argument(help="Host names or patterns, or a hosts.yaml.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Add the keys without asking.")] = False,
) -> None:
    """Show the keys that hosts offer, ask, and add them to the known hosts. A changed key is never replaced."""
    refused = 0
    new: list[HostKey] = []
    for name, access in _accesses(hosts).items():
        try:
            key = offered_key(name, access)
        except HolmesError as error:
            refused += 1
            what = error.what if isinstance(error, HostError) else f"host {name}: {error.what}"
            print_err(f"{what}\n  do: {error.hint}")
            continue
        word = "known already" if key.is_known else "new"
        print_out(f"{name} ({key.known_name}): {key.fingerprint}, {word}")
        if not key.is_known:
            new.append(key)
    keys = f"{len(new)} {'key' if len(new) == 1 else 'keys'}"
    if new and not yes and not typer.confirm(f"Compare with the hosts' own. Add {keys}?", err=True):
        raise typer.Exit(ANSWER_IS_NO)
    for key in new:
        add_host_key(key)
        print_out(f"added {key.known_name} to {key.file}")
    if refused:
        raise typer.Exit(ANSWER_IS_NO)


def _accesses(hosts: list[str]) -> dict[str, Access]:
    """Return the access of each named host, by name."""
    found: dict[str, Access] = {}
    for text in hosts:
        if Path(text).suffix in (".yaml", ".yml"):
            file = read_hosts_file(Path(text))
            found |= {entry.name: file.access(entry) for entry in file.hosts}
        else:
            found |= {name: Access() for name in expand_pattern(text)}
    return found
