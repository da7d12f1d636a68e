"""The language of `--what-if`: changes of an inventory, and keys of a job, as a user types them.

    link:A-B=10Gb/s          clusters A and B have 10 Gbit/s per host between them on the network all clusters share
    trunk:A-B=10Gb/s         all traffic between clusters A and B together has 10 Gbit/s each way
    trunk:A=10Gb/s           all traffic between cluster A and others together has 10 Gbit/s each way
    fabric:A=400Gb/s         hosts of cluster A have 400 Gbit/s per host between them on the cluster's fabric
    nic:HOST/NETDEV=25Gb/s   one interface (a netdev, or an RDMA device such as mlx5_0) runs at 25 Gbit/s
    +host:NAME=like:OTHER    one more host like OTHER, in its cluster
    -host:NAME               one host less
    gpu:A=H100               all GPUs of cluster A are H100
    tp=4                     fixes a key of job.yaml's `parallel`, such as pp, dp, micro_batch_size or schedule

Several changes at once are separated by commas.
"""

from __future__ import annotations

import re

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job, Parallel
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_yaml
from holmes_core.units import bytes_per_s_from_gbps
from planner.advice.changes import (
    Change,
    FabricRate,
    GpuType,
    LinkRate,
    MoreHost,
    NicRate,
    TrunkRate,
    WithoutHost,
    apply_changes,
    refused,
)

_GBPS = {"G": 1.0, "M": 1e-3}
PARALLEL_KEYS = frozenset(Parallel.model_fields) - {"layers"}  # whose value contains commas


def what_if(text: str, inventory: Inventory, job: Job) -> tuple[Inventory, Job]:
    """Return the inventory and the job with the changes in `text`.

    Raises:
        HolmesError: a change cannot be parsed or made, or the job does not allow the value (wrong usage).
    """
    changes, fixed = list[str](), dict[str, object]()
    for each in text.split(","):
        key, equals, value = each.strip().partition("=")
        if equals and key in PARALLEL_KEYS:
            if key in fixed:
                raise refused(text, f"{key} is given twice; use a second `--what-if` for another value")
            fixed[key] = parse_yaml(value, f"--what-if {text}")
        else:
            changes.append(each)
    changed = apply_changes(inventory, parse_changes(",".join(changes), inventory)) if changes else inventory
    if not fixed:
        return changed, job
    data = job.model_dump(mode="json")
    data["parallel"] |= fixed
    return changed, parse(Job, data, f"--what-if {text}")


def parse_changes(text: str, inventory: Inventory) -> tuple[Change, ...]:
    """Return the changes in `text`; the clusters in `inventory` show which dash of a link separates two names.

    Raises:
        HolmesError: a change cannot be parsed, or is ambiguous (wrong usage).
    """
    return tuple(_parse(change.strip(), inventory) for change in text.split(","))


def _parse(text: str, inventory: Inventory) -> Change:
    if found := re.fullmatch(r"(link|trunk):(.+)=([^=]*)", text):
        rate = _bandwidth_bytes_per_s(text, found[3])
        if found[1] == "link":
            return LinkRate(_two_clusters(text, found[2], inventory), rate)
        is_one = any(cluster.name == found[2] for cluster in inventory.clusters)
        return TrunkRate((found[2],) if is_one else _two_clusters(text, found[2], inventory), rate)
    if found := re.fullmatch(r"fabric:([^=]+)=([^=]*)", text):
        return FabricRate(found[1], _bandwidth_bytes_per_s(text, found[2]))
    if found := re.fullmatch(r"nic:([^=/]+)/([^=]+)=([^=]*)", text):
        return NicRate(found[1], found[2], _bandwidth_bytes_per_s(text, found[3]))
    if found := re.fullmatch(r"\+host:([^=]+)=like:([^=]+)", text):
        return MoreHost(name=found[1], like=found[2])
    if found := re.fullmatch(r"gpu:([^=]+)=([^=]+)", text):
        return GpuType(found[1], found[2])
    if found := re.fullmatch(r"-host:([^=]+)", text):
        return WithoutHost(found[1])
    raise refused(text, "this is not a valid change")


def _two_clusters(text: str, pair: str, inventory: Inventory) -> tuple[str, str]:
    """Return the clusters of a pair. Their names may contain dashes, so every dash is tried as the separator."""
    names = {cluster.name for cluster in inventory.clusters}
    cuts = [(pair[:at], pair[at + 1 :]) for at, sign in enumerate(pair) if sign == "-"]
    readings = {frozenset(cut): cut for cut in cuts if names.issuperset(cut) and cut[0] != cut[1]}
    if not readings:
        raise refused(text, f"{pair!r} does not name two clusters of the inventory ({', '.join(sorted(names))})")
    if len(readings) > 1:
        both = " or ".join(f"{a!r} and {b!r}" for a, b in readings.values())
        raise HolmesError(
            f"--what-if {text}: {pair!r} is ambiguous: clusters {both}",
            "name interfaces instead (`nic:HOST/NETDEV=10Gb/s`), or rename a cluster: `cluster:` in hosts.yaml",
        )
    return next(iter(readings.values()))


def _bandwidth_bytes_per_s(text: str, rate: str) -> float:
    """Return the bytes per second of `10Gb/s`, `100Mb/s`, or the same with `bit`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([GM])b(?:it)?/s", rate)
    if found is None or float(found[1]) <= 0:
        raise refused(text, f"{rate!r} is not a rate above zero such as 10Gb/s or 100Mb/s")
    return bytes_per_s_from_gbps(float(found[1]) * _GBPS[found[2]])
