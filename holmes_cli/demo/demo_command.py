"""`holmes demo`."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.demo.demo_run import STEPS, run_demo
from holmes_cli.demo.demo_site import DemoSite, write_local_hosts
from holmes_core.errors import HolmesError


def demo_command(
    folder: Annotated[Path, typer.Argument(help="Folder to make for the demo's files.")] = Path("holmes-demo"),
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of training steps.")] = STEPS,
) -> None:
    """Probe, plan, launch and train a small GPT here; four processes stand in for the hosts of two clusters."""
    if find_spec("torch") is None:
        raise HolmesError(
            f"{sys.executable} has no torch, with which the demo trains on this machine",
            f"install it: `{sys.executable} -m pip install 'torch>=2.13,<2.15'`; where pipx put Holmes, `pipx inject "
            "holmes-train 'torch>=2.13,<2.15'`; where uv did, `uv tool install --force '.[torch]'` in the checkout",
        )
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HolmesError(f"{folder}: cannot be made: {error.strerror}", "name another: `holmes demo FOLDER`") from None
    print("Four processes of this machine stand in for the hosts of two clusters: no SSH, and one loopback for all.")
    try:
        run_demo(DemoSite(folder, write_local_hosts(folder)), networks_differ=False, steps=steps)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # the command has said why
    print(f"\nAll of it is in {folder}: hosts.yaml, job.yaml, inventory.json, plan.json, runs.")
