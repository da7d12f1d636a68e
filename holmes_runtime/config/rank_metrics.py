"""Metrics of one rank's steps: the runtime writes them, the agent forwards them, and the launcher merges all ranks.

Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from holmes_runtime.config.verdicts import Verdict

METRICS_FILE = "metrics-rank{rank}.jsonl"
PRINTS_STEPS = "HOLMES_PRINTS_STEPS"  # set if no launcher shows the contents of the ranks' files
NOTICES_FILE = "notices-rank{rank}.jsonl"
GROUPS_FILE = "groups-rank{rank}.jsonl"
OUTER_SYNCS_FILE = "outer-syncs-rank{rank}.jsonl"
MAX_GROUPS = 4096  # recorded groups per rank


class ByteCounters(NamedTuple):
    """Bytes that an interface or RDMA port has sent and received since it came up, or the increase of both."""

    sent_bytes: int
    received_bytes: int

    def since(self, before: ByteCounters) -> ByteCounters:
        """Return the increase from `before` to this reading."""
        return ByteCounters(self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes)

    def plus(self, more: ByteCounters) -> ByteCounters:
        """Return this reading plus a later increase."""
        return ByteCounters(self.sent_bytes + more.sent_bytes, self.received_bytes + more.received_bytes)


def counters_increase(before: Mapping[str, ByteCounters], after: Mapping[str, ByteCounters]) -> dict[str, ByteCounters]:
    """Return the increase of each counter between two readings. Leave out counters that came, went or fell."""
    moved = {name: reading.since(before[name]) for name, reading in after.items() if name in before}
    return {name: increase for name, increase in moved.items() if min(increase) >= 0}


class WaitSeconds(NamedTuple):
    """Seconds waited, by axis. `sync` is waiting for the slowest rank when the gradient norm is summed.

    `tp` covers all waits for collectives inside layers, including those for keys and values of other parts of a
    sequence, and for tokens on their way to experts and back. In hierarchical data parallelism, waiting for gradients
    and weights in transit counts once, as `dp`.
    """

    tp: float
    dp: float
    pp_forward: float
    pp_backward: float
    sync: float

    @property
    def network_s(self) -> float:
        """Seconds waited for the network, without `sync`."""
        return self.tp + self.dp + self.pp_forward + self.pp_backward


class AppliedOuterSync(NamedTuple):
    """An outer sync whose result a step has applied, as seen by one rank, or by all ranks of an island together.

    islands: the contributors to the mean, of `tokens` tokens; an island that `has_joined` is not a contributor but
    received their state. Bytes are to and from other islands. duration_s: from its start to its end; a step waited
    waited_s of it. digest: of the resulting anchor and momentum, in hexadecimal. An island's digest is the sum of its
    ranks' modulo 2^64, the same for every island; it is 0 for an island that has joined.
    """

    exchange: int
    has_joined: bool
    islands: tuple[int, ...]
    tokens: int
    sent_bytes: int
    received_bytes: int
    duration_s: float
    waited_s: float
    digest: str


class RankOuterSync(NamedTuple):
    """An outer sync that one rank of a trainer's own command has applied."""

    rank: int
    outer: AppliedOuterSync


class RankMetrics(NamedTuple):
    """One rank's metrics of one step.

    loss: the mean over the global batch. eval_loss: of the evaluation after this step, None if not finite. Both are
    None except on the last stage. grad_norm: the global norm before clipping; None if `skipped`, that is, fp16
    gradients overflowed and the weights did not change. step_s: from the end of the previous step to the end of this
    one, without paused_s, the time of evaluation, checkpoint and health checks between them. tokens_per_s: of the whole
    run. tflops_per_s and mfu: of one rank; mfu is 0 if the GPU's peak is unknown. memory_bytes: this rank's peak, on a
    GPU of its allocator's pool. compute_s: forward and backward, without waits. exposed_s: waits that nothing hid. On
    GPUs both are of the previous step, and 0 in the first. interfaces: the increase of this host's counters, for
    interfaces and for planned RDMA ports such as `mlx5_0:1`, on local rank 0 only; unknown counters are left out; bytes
    still in flight when a step ends count in the next. verdicts: slow hosts, slow links and adapted edges, on rank 0.
    outer: the outer sync, if any.
    """

    step: int
    rank: int
    loss: float | None
    eval_loss: float | None
    grad_norm: float | None
    learning_rate: float
    skipped: bool
    step_s: float
    paused_s: float
    tokens_per_s: float
    tflops_per_s: float
    mfu: float
    memory_bytes: int
    compute_s: float
    exposed_s: WaitSeconds
    interfaces: dict[str, ByteCounters]
    verdicts: tuple[Verdict, ...]
    outer: AppliedOuterSync | None


NoticeTopic = Literal["data", "start", "warning", "saved", "best", "early stop", "compared"]


class RankNotice(NamedTuple):
    """A sentence about the data or the weights of a run.

    topic: data: lines are skipped, `bad_lines_skipped` in all; start: the source of the weights; warning: something in
    their checkpoint is wrong or different; saved: one more checkpoint is complete; best: the checkpoint with the lowest
    validation loss; early stop: why the run ends before its last step; compared: from now on both ends compare all
    traffic between hosts in every step. safe_steps: the steps of a complete checkpoint to restart from; None in other
    sentences.
    """

    rank: int
    topic: NoticeTopic
    sentence: str
    safe_steps: int | None
    bad_lines_skipped: int = 0


class GroupRecord(NamedTuple):
    """A process group that a rank of a trainer's command has made, and the network it was given.

    `network` is None if all members are on one host. `interface` is this rank's, to which a Gloo group is bound.
    `net_name` is the transport that an NCCL group is set to use. `others` are further interfaces on which sockets were
    opened meanwhile. `key` is torch's own name of the group: the same on all members and unique to the group.
    """

    rank: int
    key: str
    name: str
    backend: str
    ranks: tuple[int, ...]
    network: str | None
    interface: str | None
    net_name: str | None
    others: tuple[str, ...] = ()


MAX_SPANS = 200_000  # in a rank's trace


class RankTrace(NamedTuple):
    """A few steps of one rank as spans. Each span has a name and is on a track (a thread or a stream of the GPU).

    Columns are by span: `track` and `name` are positions in `tracks` and `names`, and `start_ns` is Unix time by the
    host's clock. Spans are sorted by track and start. Two spans on one track are nested or do not overlap.
    """

    rank: int
    tracks: tuple[str, ...]
    names: tuple[str, ...]
    track: tuple[int, ...]
    name: tuple[int, ...]
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]


RankFileKind = Literal["trace", "memory"]


def rank_file(kind: RankFileKind, rank: int) -> str:
    """Return the name of a rank's JSON file: its compressed `RankTrace`, or the contents of its GPU memory."""
    return {"trace": f"trace-rank{rank}.json.gz", "memory": f"memory-rank{rank}.json"}[kind]


def step_name(step: int) -> str:
    """Return the name of a step in a trace."""
    return f"step {step}"


def action_name(kind: str, microbatch: int, stage: int) -> str:
    """Return the name of a schedule's action in a trace, measured or predicted."""
    return f"{kind} {microbatch}, stage {stage}"
