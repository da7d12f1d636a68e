"""Messages from a node's agent to the controller, and its commands to the agent: one record per line. Free of torch.

Both sides use this module. The agent first answers "ready"; its ranks start only at `Go`.
"""

from __future__ import annotations

import signal
from typing import NamedTuple, get_args

from holmes_runtime.config.islands.rendezvous_messages import FromMeeting, ToMeeting
from holmes_runtime.config.node_config import GpuClaim, TunnelEnd, TunnelFault
from holmes_runtime.config.rank_metrics import (
    ByteCounters,
    GroupRecord,
    RankFileKind,
    RankMetrics,
    RankNotice,
    RankOuterSync,
)
from holmes_runtime.config.strict_json import parse_one_of, to_json

ASK_FILE = "asked"  # in a node's folder: touched when the agent asks a trainer's ranks for their positions
ASK_SIGNAL = signal.SIGUSR2  # blocked in all threads from the start; one thread waits for it, even if others are stuck
POSITIONS_FILE = "positions-rank{rank}.jsonl"
CHANGED = "was changed on the way"  # marks the message of a failure that neither end caused
NOT_FINITE = "not finite"  # marks the message of a failure by numbers that are not
NO_FOLDER = 4  # exit code of a relay that cannot find its node's folder


class NodeInterface(NamedTuple):
    """A network interface and its first IPv4 address, None if it has none."""

    up: bool
    address: str | None


class NodeGpu(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    gpu_index: int
    uuid: str
    name: str


class NodeGpuProcess(NamedTuple):
    """A process that uses a GPU, as nvidia-smi prints it."""

    gpu_uuid: str
    pid: str
    name: str


class NodeCheckpointFolder(NamedTuple):
    """The checkpoint folder, or its nearest existing parent, and the free space there, None if unknown.

    `newest` is the name of the newest checkpoint in it, None without one. `steps` are the steps of the last checkpoints
    up to it, by their names. `in_cache`: links lead into Holmes's own cache, which a run removes when it ends.
    `mount_point` is that of the file system that holds it.
    """

    folder: str
    writable: bool
    free_bytes: int | None
    newest: str | None
    in_cache: bool
    mount_point: str
    steps: tuple[int, ...] = ()


class NodeNcclSetting(NamedTuple):
    """An NCCL variable that is set before the plan sets its own, in the environment or in a file."""

    where: str
    name: str
    value: str


class NodeFacts(NamedTuple):
    """The current facts about a node that its launch relies on.

    `executable` is the Python that runs the agent. `torch` and `nccl` are versions, None if missing. `torch_cuda` is
    the CUDA version of torch's build, None for a build without CUDA. `driver` is the version of the GPUs' driver, None
    if unknown. `local_addresses` are the planned addresses that the host has. `rdma_ports`: `mlx5_0:1` -> `ACTIVE`.
    `net_plugin_there`: the file of NCCL_NET_PLUGIN exists, None if the ranks' environment names none. `gpus` and
    `gpu_processes` are None if nvidia-smi does not answer. `gpus_failure` is the reason, or nvidia-smi's message about
    a lost GPU. `gpus_taken` are planned GPUs that other runs have. `free_bytes` are of the home folder,
    `shm_free_bytes` of /dev/shm. `missing_inputs` cannot be read on this node. `wrong_inputs` are reasons why it cannot
    train on the inputs that it can read. `compile_lacks` and `fp8_lacks` say what compiled layers and layers in FP8
    need. `memlock_bytes` is -1 without a limit. `memory_bytes` is the host's available memory, None if unknown.
    """

    python: str
    executable: str
    torch: str | None
    torch_cuda: str | None
    driver: str | None
    nccl: str | None
    interfaces: dict[str, NodeInterface]
    local_addresses: tuple[str, ...]
    rdma_ports: dict[str, str]
    net_plugin_there: bool | None
    gpus: tuple[NodeGpu, ...] | None
    gpus_failure: str | None
    gpu_processes: tuple[NodeGpuProcess, ...] | None
    free_bytes: int
    shm_free_bytes: int | None
    checkpoint: NodeCheckpointFolder | None
    missing_inputs: tuple[str, ...]
    wrong_inputs: tuple[str, ...]
    compile_lacks: str | None
    fp8_lacks: str | None
    memlock_bytes: int
    memory_bytes: int | None
    nccl_settings: tuple[NodeNcclSetting, ...]
    gpus_taken: tuple[GpuClaim, ...]


class SocketAddress(NamedTuple):
    """The address and port of a listening socket."""

    address: str
    port: int


class Ready(NamedTuple):
    """The node was checked and listens on its planned interfaces.

    `master_port` is None if no port is free, and on every node but the first. `tunnel` is None if the plan encrypts
    nothing.
    """

    facts: NodeFacts
    listeners: dict[str, SocketAddress]
    master_port: int | None
    tunnel: TunnelEnd | TunnelFault | None = None


class Met(NamedTuple):
    """The tunnel has its peers, or `fault` says why not."""

    fault: TunnelFault | None


class Reached(NamedTuple):
    """All destinations were tried. `faults` has a sentence for each one that was not reached."""

    faults: tuple[str, ...]


class Started(NamedTuple):
    """torchrun is running."""


class RanksUp(NamedTuple):
    """Every rank's process has started."""


class HostCounters(NamedTuple):
    """Byte counters of a host's planned interfaces and RDMA ports, and the kinds of its planned GPUs, by CUDA's names.

    Sent if ranks run a trainer's own command, which reports neither.
    """

    interfaces: dict[str, ByteCounters]
    gpus: tuple[str, ...]


class RankPrinted(NamedTuple):
    """A line of a rank's output."""

    local_rank: int
    line: str


class RankFile(NamedTuple):
    """A part of a file that a rank has written, from byte `offset` on. `data` is in base64."""

    rank: int
    file: RankFileKind
    offset: int
    data: str


class RankFailed(NamedTuple):
    """A rank failed, or torchrun itself if `rank` is None. A negative `exit_code` is a signal. `time_s` is Unix time.

    `last_lines` are torchrun's. `oom_kills` counts all processes killed since the agent started, by the kernel's count.
    """

    rank: int | None
    exit_code: int
    message: str
    time_s: float
    last_lines: tuple[str, ...] = ()
    oom_kills: int = 0


class RankState(NamedTuple):
    """The state of a rank's process, as the letter in /proc/PID/stat."""

    local_rank: int
    state: str


class RankStates(NamedTuple):
    """The first answer to `Stacks`. The ranks themselves print their stacks and report `RankPosition`."""

    states: tuple[RankState, ...]


class GroupProgress(NamedTuple):
    """A rank's progress in a group's collectives, or in its messages if `p2p`. torch counts each from 1.

    `enqueued` is the last one handed to the backend. `started` equals `completed` if torch does not time collectives.
    """

    group: str
    p2p: bool
    enqueued: int
    started: int
    completed: int


class RankPosition(NamedTuple):
    """A rank's current action, in words, and its progress in each group that torch records.

    `alone`: the action needs no other rank. `moved_bytes` went over its TCP connections in the second after the
    request. `stack` has the calls of its main thread, the innermost last. `working_in` is the call that is at work,
    None if it may be waiting.
    """

    rank: int
    doing: str
    alone: bool
    groups: tuple[GroupProgress, ...]
    moved_bytes: int = 0
    stack: tuple[str, ...] = ()
    working_in: str | None = None


class Stuck(NamedTuple):
    """Processes that cannot be ended, each with a description."""

    processes: tuple[str, ...]


class Exited(NamedTuple):
    """torchrun ended."""

    exit_code: int


class Alive(NamedTuple):
    """A sign of life, sent if there was nothing else to send."""


class Refused(NamedTuple):
    """The agent could not read a command, for this reason."""

    reason: str


class NotKept(NamedTuple):
    """The number of messages dropped to make room for newer ones. The relay sends this in their place."""

    messages: int


class AgentEnded(NamedTuple):
    """The last message of a node, which the relay adds."""


class Go(NamedTuple):
    """Start the ranks, with the rendezvous at that port of the first node.

    The nodes of this attempt prove to one another that they know `secret` (hexadecimal), which no file or command has.
    """

    master_port: int
    secret: str


class Destination(NamedTuple):
    """A socket to connect to, and the local address to connect from (None for any). `what` names it in a fault."""

    what: str
    source: str | None
    address: str
    port: int


class Meet(NamedTuple):
    """Take these tunnel ends, by node rank, as the only peers; None for an end that does not exist yet."""

    ends: tuple[TunnelEnd | None, ...]


class Reach(NamedTuple):
    """Try to connect to all destinations."""

    destinations: tuple[Destination, ...]


class Save(NamedTuple):
    """Have the ranks finish the step, save and end. Ranks that get this twice end at once."""


class Stacks(NamedTuple):
    """Have the ranks print their stacks and report their positions and states."""


class Stop(NamedTuple):
    """End all ranks and then the agent."""


Message = (
    Ready
    | Met
    | Reached
    | Started
    | RanksUp
    | HostCounters
    | RankPrinted
    | RankMetrics
    | RankNotice
    | RankOuterSync
    | GroupRecord
    | RankFile
    | RankFailed
    | RankStates
    | RankPosition
    | Stuck
    | Exited
    | Alive
    | Refused
    | NotKept
    | ToMeeting
    | AgentEnded
)
Command = FromMeeting | Go | Meet | Reach | Save | Stacks | Stop


def encode(record: Message | Command) -> bytes:
    """Return the record as one line."""
    return to_json(record, with_kind=True).encode() + b"\n"


def decode_message(line: str) -> Message:
    """Parse a line from an agent. Raises ValueError naming the key and the value if it is not a message."""
    message: Message = parse_one_of(get_args(Message), line)
    return message


def decode_command(line: str) -> Command:
    """Parse a line from the controller. Raises ValueError naming the key and the value if it is not a command."""
    command: Command = parse_one_of(get_args(Command), line)
    return command
