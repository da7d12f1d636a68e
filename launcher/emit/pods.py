"""The nodes of a plan as groups of identical pods. Image, GPUs, volumes and devices follow from the plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Node, Plan
from launcher.emit.gpu_request import gpus_to_request
from launcher.emit.pod_script import FOLDER
from launcher.prepare.container import uses_rdma

SHARED_MEMORY = "/dev/shm"
RDMA_DEVICES = "/dev/infiniband"
NODE_PATTERN = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"  # RFC 1123, limited to the length of a label value


class HostVolume(NamedTuple):
    """A folder of the host and its mount point in the pod."""

    source: str
    target: str
    read_only: bool


class Pod(NamedTuple):
    """A pod of a cluster, without its node. `gpus` is None on CPUs."""

    cluster: str
    image: str
    gpus: int | None
    volumes: tuple[HostVolume, ...]
    uses_rdma: bool


class PodGroup(NamedTuple):
    """Identical pods, one on each of `hosts`. Groups are numbered from 0."""

    number: int
    hosts: tuple[str, ...]
    pod: Pod


def pod_groups(plan: Plan) -> tuple[PodGroup, ...]:
    """Return one group per cluster, or several if its nodes need different pods.

    Raises HolmesError naming a host that cannot be a pod as hosts.yaml describes it.
    """
    hosts: dict[Pod, list[str]] = {}
    for node in plan.nodes:
        hosts.setdefault(_pod(plan, node), []).append(node.host)
    return tuple(PodGroup(number, tuple(names), pod) for number, (pod, names) in enumerate(hosts.items()))


def _pod(plan: Plan, node: Node) -> Pod:
    if re.fullmatch(NODE_PATTERN, node.host) is None:
        raise HolmesError(
            f"--to kubernetes: host {node.host!r} is not a valid name of a Kubernetes node",
            "name hosts in hosts.yaml as `kubectl get nodes` does, then probe and plan again",
        )
    container = node.access.container
    if container is None or container.engine != "docker":
        seen = "has no container" if container is None else f"has a container of {container.engine}"
        raise HolmesError(
            f"--to kubernetes: host {node.host} {seen} in hosts.yaml, and pods need an image",
            "add `container: {engine: docker, image: IMAGE}`, then probe and plan again",
        )
    volumes = tuple(_volumes(node.host, container.options))
    rdma = uses_rdma(node)
    if rdma and RDMA_DEVICES not in [volume.target for volume in volumes]:
        volumes += (HostVolume(RDMA_DEVICES, RDMA_DEVICES, False),)
    return Pod(node.cluster, container.image, gpus_to_request(plan, node), volumes, rdma)


def _volumes(host: str, options: tuple[str, ...]) -> Iterator[HostVolume]:
    """Parse the options of docker. Each must mount a folder of the host."""
    words, taken = iter(options), {FOLDER, SHARED_MEMORY}
    for word in words:
        name, has_value, value = word.partition("=")
        if name not in ("-v", "--volume"):
            raise HolmesError(
                f"--to kubernetes: host {host}: `{word}` in container.options is an option of docker, not of a pod",
                "leave it out and change jobset.yaml afterwards; --volume is converted",
            )
        said = value if has_value else next(words, "")
        match = re.fullmatch(r"(/[^:]*):(/[^:]*)(?::(ro|rw))?", said)
        if match is None or ".." in match[1].split("/"):
            raise HolmesError(
                f"--to kubernetes: host {host}: volume {said!r} in container.options is not a folder of the host",
                "write it as /ON/THE/HOST:/IN/THE/CONTAINER, with :ro behind it to keep it from being written to",
            )
        target = match[2].rstrip("/") or "/"
        if target in taken:
            raise HolmesError(
                f"--to kubernetes: host {host}: volume {said!r} in container.options uses a mount point that is taken",
                f"give each folder its own mount point, other than {FOLDER} and {SHARED_MEMORY}",
            )
        taken.add(target)
        yield HostVolume(match[1], target, match[3] == "ro")
