"""Plan: every rank, every group and its network, every variable with its reason, and what it should cost."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.records.access import Access
from holmes_core.records.job import Job, Recompute, ScheduleName
from holmes_core.records.record import FileRecord, Record

Axis = Literal["tp", "dp", "pp_forward", "pp_backward"]
Order = Literal["holmes", "usual"]
NetName = Literal["IB", "Socket"]
Crossing = Literal["nothing", "pipeline", "data", "both"]
"""What travels between clusters: messages between stages, the gradients of replicas."""


class EnvironmentVariable(Record):
    """One variable of a node's environment, and why it is set."""

    name: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]
    reason: str


class Node(Record):
    """A host inside the job. `shared_address` is where the other nodes reach it for control traffic."""

    node_rank: int
    host: str
    cluster: str
    access: Access
    num_ranks: int
    shared_netdev: str
    shared_address: str
    environment: tuple[EnvironmentVariable, ...]


class PlanStage(Record):
    """Layers [first_layer, stop_layer) and the clusters whose slots hold them (several only when one is too small).

    Stage `index` is on pipeline rank index % pp.
    """

    index: int
    first_layer: int
    stop_layer: int
    clusters: tuple[str, ...]

    @property
    def num_layers(self) -> int:
        return self.stop_layer - self.first_layer


class PlanRank(Record):
    """One tasklet on its slot. `gpu` is the device index on the host, None on CPU."""

    rank: int
    host: str
    cluster: str
    local_rank: int
    gpu: int | None
    pp_rank: int
    dp_rank: int
    tp_rank: int


class PlanGroup(Record):
    """One process group: its members, and the network it must use.

    `network` is a cluster's fabric or "shared"; `interfaces` are the netdevs there, one a member in the order of
    `ranks`; `net_name` is NCCL's name for the transport ("IB" covers RoCE). The bandwidth is the least share of a NIC
    that a member gets; None where all members are on one host and the NIC's rate is not known.
    """

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    network: str
    interfaces: tuple[str, ...]
    net_name: NetName | None
    bandwidth_bytes_per_s: float | None


class InterfaceTraffic(Record):
    """Bytes one interface carries per step, by what they are for."""

    host: str
    netdev: str
    network: str
    sent_bytes: int
    received_bytes: int


class Prediction(Record):
    """Seconds of one step and its parts, and what travels. Parts add up to `step_s` along the critical path.

    `compute_s` is the busiest rank's, `exposed_*_s` what each kind of traffic adds, and the optimizer comes last.
    `memory_bytes` is per rank, one number a pipeline rank. `microbatch_compute_s`, by pipeline rank and replica, is
    what a rank computes on one micro-batch, forward and backward, without tensor parallel collectives.
    """

    step_s: float
    compute_s: float
    bubble_s: float
    exposed_tp_s: float
    exposed_edge_s: float
    exposed_dp_s: float
    optimizer_s: float
    tokens_per_s: float
    memory_bytes: tuple[int, ...]
    microbatch_compute_s: tuple[tuple[float, ...], ...]
    traffic: tuple[InterfaceTraffic, ...]


class Alternative(Record):
    """A runner-up of the search: its degrees, what of it crosses between clusters, its seconds a step, why it lost."""

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    schedule: ScheduleName
    chunks: int = 1
    recompute: Recompute
    crossing: Crossing
    step_s: float
    why: str


class BlockDegrees(Record):
    """Consecutive stages in one cluster with degrees of their own."""

    cluster: str
    stages: int
    tp: int
    dp: int
    micro_batch_size: int


class UnequalDegrees(Record):
    """A placement whose tensor and data degrees differ by cluster, which the bundled runtime cannot run, and its
    closed form."""

    blocks: tuple[BlockDegrees, ...]
    placement_s: float


class SolveReport(Record):
    """How the answer was found. `gap` is (objective - bound) / objective; 0 is a proof.

    `objective_s` is the least closed form found, which the integer program minimises, and `placement_s` that of this
    plan, which is larger where simulation preferred another of the best. Prediction.step_s is the simulated schedule.
    `alternatives` are the next best and the best of every other crossing, best first. `unequal` is what the bundled
    runtime cannot run and would be faster than `objective_s`, as far as was looked.
    """

    solver: str
    status: Literal["optimal", "near optimal", "time limit", "fixed"]
    objective_s: float
    bound_s: float
    gap: float
    placement_s: float
    candidates: int
    programs: int
    crossing: Crossing
    alternatives: tuple[Alternative, ...] = ()
    unequal: UnequalDegrees | None = None


class Source(Record):
    """A file the plan was made from: its path as seen from the plan's folder, and its digest."""

    path: str
    digest: str


class Plan(FileRecord):
    """The whole placement of one job on one inventory.

    `microbatches[i]` is how many micro-batches replica i runs per step; `chunks` how many stages a pipeline rank
    holds; `extra_in_flight` one number an edge, for the schedule "eager", else empty.
    """

    KIND: ClassVar[str] = "plan"
    RENEW: ClassVar[str] = "holmes plan job.yaml"

    schema_version: Literal[1] = 1
    inventory: Source
    job_source: Source
    job: Job
    order: Order
    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    microbatches: tuple[int, ...]
    schedule: ScheduleName
    chunks: int
    extra_in_flight: tuple[int, ...]
    recompute: Recompute
    nodes: tuple[Node, ...]
    stages: tuple[PlanStage, ...]
    ranks: tuple[PlanRank, ...]
    groups: tuple[PlanGroup, ...]
    prediction: Prediction
    solve: SolveReport
    usual_order: Prediction | None

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    @model_validator(mode="after")
    def _ranks_are_complete(self) -> Plan:
        if [rank.rank for rank in self.ranks] != list(range(self.world_size)):
            raise ValueError(f"ranks are not 0..{self.world_size - 1} in order")
        coordinates = {(rank.pp_rank, rank.dp_rank, rank.tp_rank) for rank in self.ranks}
        if len(coordinates) != self.world_size:
            raise ValueError("two ranks have the same coordinates")
        if len(self.microbatches) != self.dp:
            raise ValueError(f"microbatches are of {len(self.microbatches)} replicas, dp is {self.dp}")
        if len(self.stages) != self.pp * self.chunks:
            raise ValueError(f"{len(self.stages)} stages, pp x chunks is {self.pp * self.chunks}")
        if sum(node.num_ranks for node in self.nodes) != self.world_size:
            raise ValueError("the nodes' ranks do not add up to the world size")
        return self
