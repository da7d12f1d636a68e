"""The results of the checks before a launch."""

from __future__ import annotations

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import err, print_err
from launcher.nodes.preflight import CHECKS, Preflight, remedy_of


def show_preflight(preflight: Preflight) -> None:
    """Print a line per check, then each fault with its evidence and remedy."""
    faulty = {fault.check for fault in preflight.faults}
    refusing = {fault.check for fault in preflight.refusing}
    rows = []
    for check in CHECKS:
        word = "failed" if check.name in refusing else "forced" if check.name in faulty else "passed"
        if check.name in faulty or not preflight.faults:
            rows.append((check.name, check.makes_sure, word))
    err.print(fitted_table(("check", "makes sure that", ""), rows, err.width, "Preflight"))
    for fault in preflight.faults:
        print_err(f"host {fault.host}: {fault.check}: {fault.evidence}")
        print_err(f"  do: {remedy_of(fault)}")
