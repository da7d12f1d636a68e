"""Hosts on one machine, such as local processes and network namespaces: their slots share its cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from planner.cost.slot import Cores


def shared_cores(num_slots: Sequence[tuple[Host, int]], job: Job) -> dict[str, Cores]:
    """Return, by host name, the cores of each machine that has too few for all its slots at once.

    Hosts come with their slots. The same boot id means the same machine. GPUs and emulated compute share no cores.
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
