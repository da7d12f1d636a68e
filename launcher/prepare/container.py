"""The words that start something in a host's container, for the shell that runs them there."""

from __future__ import annotations

import shlex

from holmes_core.records.plan import Node


def container_words(node: Node, docker_options: str, folder: str, bound: str) -> str:
    """Return the container engine's words up to and with the image, on a node that has one.

    `folder` is the working folder and `bound` the part of the host that the container sees, both to be put between
    double quotes. `docker_options` are Docker's alone, ready for the shell.
    """
    container = node.access.container
    assert container is not None
    options = " ".join(shlex.quote(option) for option in container.options)
    rest = f"{options} {shlex.quote(container.image)}"
    on_gpus = any(variable.name == "CUDA_VISIBLE_DEVICES" for variable in node.environment)
    if container.engine == "apptainer":
        return f'apptainer exec {"--nv " if on_gpus else ""}--bind "{bound}" --pwd "{folder}" {rest}'
    devices = ("--gpus all " if on_gpus else "") + ("--device /dev/infiniband " if uses_rdma(node) else "")
    return (
        f"docker run --rm {docker_options} --network host --ipc host --ulimit memlock=-1 {devices}"
        f'--user "$(id -u):$(id -g)" --env "HOME=$HOME" --volume "{bound}:{bound}" --workdir "{folder}" {rest}'
    )


def uses_rdma(node: Node) -> bool:
    """True if the plan has the node's ranks open RDMA devices."""
    return any(variable.name in ("NCCL_IB_HCA", "NCCL_NET_PLUGIN") for variable in node.environment)
