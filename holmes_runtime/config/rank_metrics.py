"""What one rank saw of its steps: the runtime writes it, the agent passes it on, the launcher makes one of all ranks'.

Free of torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from holmes_runtime.config.verdicts import Verdict

METRICS_FILE = "metrics-rank{rank}.jsonl"
PRINTS_STEPS = "HOLMES_PRINTS_STEPS"  # a variable that is set where no launcher shows what ranks leave in files
NOTICES_FILE = "notices-rank{rank}.jsonl"


class ByteCounters(NamedTuple):
    """Bytes an interface or an RDMA port has sent and received since it came up, or their increase."""

    sent_bytes: int
    received_bytes: int

    def since(self, before: ByteCounters) -> ByteCounters:
        """The increase from `before` to this reading."""
        return ByteCounters(self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes)

    def plus(self, more: ByteCounters) -> ByteCounters:
        """This reading and an increase after it."""
        return ByteCounters(self.sent_bytes + more.sent_bytes, self.received_bytes + more.received_bytes)


class Waits(NamedTuple):
    """Seconds waited by axis; `sync` is waiting for the slowest rank when the gradient norm is added up.

    Gradients and weights under way in hierarchical data parallelism are waited for once, as `dp`.
    """

    tp: float
    dp: float
    pp_forward: float
    pp_backward: float
    sync: float

    @property
    def network_s(self) -> float:
        """Seconds waited for the network, which `sync` is not."""
        return self.tp + self.dp + self.pp_forward + self.pp_backward


class OuterExchange(NamedTuple):
    """An exchange between islands whose outcome a step has applied, as one rank saw it, or all of an island's together.

    islands: those whose changes are in the mean, of so many tokens; one that `has_joined` is not among them and got the
    state of the others. Bytes are those to and from other islands. duration_s: from its beginning to its end, of which
    a step waited waited_s. digest: of the anchor and momentum it led to, in hexadecimal; an island's is the sum of its
    ranks', modulo 2^64, the same for every island; 0 for one that has joined.
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


class RankMetrics(NamedTuple):
    """What one rank saw of one step.

    loss: mean over the global batch; eval_loss: of the evaluation after this step; both None but on the last stage.
    grad_norm: global norm before clipping; None if `skipped`: fp16 gradients overflowed, and the weights stayed as they
    were. step_s: from the end of the step before to the end of this one, without paused_s, which evaluation, checkpoint
    and health took between them. tokens_per_s: of the whole run. tflops_per_s and mfu: of one rank; mfu is 0 when the
    GPU's peak is not known. memory_bytes: the most this rank has held, of a GPU its allocator's pool. compute_s:
    forward and backward, without waits. exposed_s: the waits that nothing hid. Both are on GPUs of the step before, and
    0 in the first. interfaces: increase of this host's counters, of interfaces and of planned RDMA ports such as
    `mlx5_0:1`, on local rank 0 only; what is not known is left out; bytes still in flight when a step ends count to the
    next. verdicts: slow hosts and links and adapted edges, on rank 0. outer: what islands exchanged, if anything.
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
    exposed_s: Waits
    interfaces: dict[str, ByteCounters]
    verdicts: tuple[Verdict, ...]
    outer: OuterExchange | None


NoticeTopic = Literal["data", "start", "warning", "saved", "compared"]


class RankNotice(NamedTuple):
    """A sentence on the data and the weights of a run.

    topic: data: lines of it are skipped, `bad_lines_skipped` in all; start: where the weights come from; warning:
    something is wrong or different in the checkpoint that they come from; saved: one more checkpoint is whole;
    compared: both ends compare what travels between hosts in every step from now on.
    safe_steps: those of a checkpoint that is whole, to start again from; None in sentences on anything else.
    """

    rank: int
    topic: NoticeTopic
    sentence: str
    safe_steps: int | None
    bad_lines_skipped: int = 0


MOST_SPANS = 200_000  # of a rank's trace


class RankTrace(NamedTuple):
    """A few steps of one rank as spans: each on a track (a thread, a stream of the GPU), with a name.

    The columns go by span: `track` and `name` are positions in `tracks` and `names`, `start_ns` is Unix time by the
    host's clock. Spans are in order of track and start, and on one track lie inside or behind one another.
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
    """The name of a file that a rank leaves: its `RankTrace`, compressed; or what filled its GPU's memory. As JSON."""
    return {"trace": f"trace-rank{rank}.json.gz", "memory": f"memory-rank{rank}.json"}[kind]


def step_name(step: int) -> str:
    """What a step is called in a trace."""
    return f"step {step}"


def action_name(kind: str, microbatch: int, stage: int) -> str:
    """What an action of a schedule is called in a trace, measured or predicted."""
    return f"{kind} {microbatch}, stage {stage}"
