"""What to do when an attempt has failed. Pure."""

from __future__ import annotations

from typing import Literal

from holmes_core.records.run import Settings

NextStep = Literal["end", "restart", "wait", "replan"]


def next_step(settings: Settings, restarts_done: int, lost_hosts: tuple[str, ...]) -> NextStep:
    """End the run, start it again on the same hosts, wait for lost ones, or plan without them."""
    if lost_hosts and settings.on_loss != "stop":
        return settings.on_loss
    if not lost_hosts and restarts_done < settings.restarts:
        return "restart"
    return "end"
