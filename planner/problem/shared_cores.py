"""Hosts that are one machine, as local processes and network namespaces are: their slots share its cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from planner.cost.slot import Cores


def shared_cores(num_slots: Sequence[tuple[Host, int]], job: Job) -> dict[str, Cores]:
    """Return, by name of a host, given with its slots, the cores of its machine, where all slots at once have too few.

    Hosts with the same boot id are one machine. GPUs and emulated compute share no cores.
    """
    if job.device != "cpu" or job.compute.emulate is not None:
        return {}
    on_machine = Counter[tuple[str, str]]()
    for host, slots in num_slots:
        on_machine[machine_of(host)] += slots
    found = {}
    for host, _ in num_slots:
        slots = on_machine[machine_of(host)]
        if host.cpu_count and slots * job.threads_per_slot > host.cpu_count:
            found[host.name] = Cores(slots, job.threads_per_slot / host.cpu_count)
    return found


def machine_of(host: Host) -> tuple[str, str]:
    """Return a key that only hosts on the same machine share."""
    return ("boot", host.boot_id) if host.boot_id else ("host", host.name)
