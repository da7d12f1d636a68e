"""The configuration of a node's agent, in addition to the run's. Free of torch; the launcher writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.strict_json import encode, parse

KEY_VARIABLE = "HOLMES_RANK_KEY"  # in ranks' environment until they read it; hexadecimal
TRAINER_FILE = "trainer.json"  # in a node's folder: the configuration of a trainer's command
TRAINER_VARIABLE = "HOLMES_TRAINER"  # in ranks' environment: its path
HOST_VARIABLE = "HOLMES_HOST"  # likewise: the host, by its name in the plan
AGENT_LOCK_FILE = "agent.lock"  # in a node's folder, from the agent's start
MEMORY_FOLDERS = Path("/dev/shm")
MEMORY_VARIABLE = "HOLMES_MEMORY_FOLDER"  # in ranks' environment: where they keep the newest checkpoint in memory
COMPILED_FOLDER = "/var/tmp/holmes-compiled-"  # and the user's number: on each machine's own disk, kept over a reboot
SHM_BYTES_PER_RANK = 128 << 20  # for NCCL, whose buffers of a rank stay well below; Docker's default of 64 MiB is short


def memory_folder(run_id: str, host: str) -> str:
    """Return the folder where a run's ranks on that host keep the newest checkpoint in memory."""
    return str(MEMORY_FOLDERS / f"holmes-{run_id}-{host.replace('/', '-')}")


class TunnelConfig(NamedTuple):
    """The tunnel between all nodes: `interface` is its end on each, with that node's address of `node_addresses`.

    `endpoints`: by node rank, the addresses to which this node sends its encrypted packets. `hub`: the node rank of the
    host that relays, and `relayed` the nodes that this one reaches through it.
    """

    interface: str
    endpoints: tuple[str, ...]
    hub: int | None = None
    relayed: tuple[int, ...] = ()


class GpuClaim(NamedTuple):
    """A run that holds a GPU of a node: its id, its user, and the claim's Unix time."""

    uuid: str
    gpu_index: int
    user: str
    run_id: str
    since_s: int


class TunnelEnd(NamedTuple):
    """A node's end of the tunnel: the public key in base64, and the UDP port that receives encrypted packets."""

    public_key: str
    port: int


class TunnelFault(NamedTuple):
    """The reason why this node has no tunnel, and the remedy."""

    evidence: str
    remedy: str


class NodeConfig(NamedTuple):
    """The configuration of one node in one attempt of a run.

    `addresses` has the node's address on each planned interface, None where the plan names none; `node_addresses` has
    all nodes' addresses on their shared network, in order. The rendezvous is at the first, on the first free port from
    `master_port` on. `inputs` are the files and folders of job.yaml that every host must have. `environment` is for the
    ranks; `secrets` are names of variables whose values lie in files of their own. An attached run ends after
    `silence_limit_s` without a message from the controller; a `detached` one continues. `tunnel`: None where nothing is
    encrypted, and for the ranks of an island: an agent without ranks has that of all islands. `meets`: the node belongs
    to an island, and its ranks use the rendezvous of all islands.
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
        """Return the text that `from_json` reads."""
        return json.dumps(encode(type(self), self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Parse the configuration. Raises ValueError for a missing or unknown key, from another version of Holmes."""
        return parse(cls, text)


def hca_ports(value: str) -> tuple[str, ...]:
    """Return `mlx5_0:1`, ... of an NCCL_IB_HCA with exact ports, as in plans; without a port, it is the first."""
    entries = (entry for entry in value.lstrip("^=").split(",") if entry)
    return tuple(entry if ":" in entry else f"{entry}:1" for entry in entries)
