"""What one node's agent needs to know beyond the run configuration. Free of torch; the launcher writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.strict_json import encode, parse

KEY_VARIABLE = "HOLMES_RANK_KEY"  # in ranks' environment until they read it; hexadecimal
AGENT_LOCK_FILE = "agent.lock"  # in a node's folder, from when the agent begins
MEMORY_FOLDERS = Path("/dev/shm")
MEMORY_VARIABLE = "HOLMES_MEMORY_FOLDER"  # where ranks keep the newest checkpoint in memory, in their environment
SHM_BYTES_PER_RANK = 128 << 20  # for NCCL, whose buffers of a rank stay well below; Docker's default of 64 MiB is short


def memory_folder(run_id: str, host: str) -> str:
    """Where ranks of a run on that host keep the newest checkpoint in memory."""
    return str(MEMORY_FOLDERS / f"holmes-{run_id}-{host.replace('/', '-')}")


class TunnelConfig(NamedTuple):
    """The tunnel between all nodes: the `interface` that is its end on each, which has the node's own address of
    `node_addresses`; and `endpoints`, by node rank the addresses between which what is encrypted travels."""

    interface: str
    endpoints: tuple[str, ...]


class GpuClaim(NamedTuple):
    """A run that has a GPU of a node: its id, whose it is, and since when (Unix time)."""

    uuid: str
    gpu_index: int
    user: str
    run_id: str
    since_s: int


class TunnelEnd(NamedTuple):
    """A node's end of the tunnel: the public key in base64, and the UDP port where it takes what is encrypted."""

    public_key: str
    port: int


class TunnelFault(NamedTuple):
    """Why there is no tunnel on this node, and what to do about it."""

    evidence: str
    remedy: str


class NodeConfig(NamedTuple):
    """One node of one attempt of a run.

    `addresses` are the planned interfaces and the node's address on each, None where the plan names none;
    `node_addresses` those of all nodes on the network that they share, in order. The rendezvous is at the first, and
    takes the first free port from `master_port` on. `inputs` are the files and folders that job.yaml names and every
    host must have. `environment` is for the ranks; `secrets` are names of variables whose values lie in files of their
    own. An attached run ends after `silence_limit_s` without a word from the controller; a `detached` one goes on.
    `tunnel`: None where nothing is encrypted. `meets`: the node is of an island, and its ranks reach the meeting of
    all.
    """

    run_id: str
    host: str
    node_rank: int
    num_ranks: int
    node_addresses: tuple[str, ...]
    master_port: int
    addresses: dict[str, str | None]
    gpus: tuple[int, ...]
    checkpoint_path: str | None
    inputs: tuple[str, ...]
    environment: dict[str, str]
    secrets: tuple[str, ...]
    silence_limit_s: float
    detached: bool
    tunnel: TunnelConfig | None = None
    meets: bool = False

    def to_json(self) -> str:
        """The text `from_json` reads."""
        return json.dumps(encode(type(self), self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Raises ValueError for a missing or unknown key: launcher and runtime are of different versions."""
        return parse(cls, text)


def hca_ports(value: str) -> tuple[str, ...]:
    """`mlx5_0:1`, ... of an NCCL_IB_HCA that names ports exactly, as plans do; a device without a port is its first."""
    entries = (entry for entry in value.lstrip("^=").split(",") if entry)
    return tuple(entry if ":" in entry else f"{entry}:1" for entry in entries)
