"""The command line that starts a program in a host's container, for the shell of that host."""

from __future__ import annotations

import shlex

from holmes_core.records.plan import Node


def container_words(node: Node, docker_options: str, folder: str, bound: str) -> str:
    """Return the container engine's command line up to and including the image, for a node with a container.

    `folder` is the working folder, and `bound` the folder of the host that the container sees. Both go into double
    quotes. `docker_options` are for Docker only, already quoted for the shell.
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
    """Return True if the plan has the node's ranks open RDMA devices."""
    return any(variable.name in ("NCCL_IB_HCA", "NCCL_NET_PLUGIN") for variable in node.environment)
