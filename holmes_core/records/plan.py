"""Plan: every rank, every group with its network, every variable with its reason, and the predicted cost."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.records.access import Access, OneLine
from holmes_core.records.islands import Modes, Round
from holmes_core.records.job import Job
from holmes_core.records.link import IPv4
from holmes_core.records.record import FileRecord, Record
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.rank_grid import Axis, DataParallel, NetName
from holmes_runtime.config.run_settings import Recompute, Zero
from holmes_runtime.config.schedule import ScheduleName

Order = Literal["holmes", "usual"]
Crossing = Literal["nothing", "pipeline", "data", "both"]
"""The traffic between clusters: messages between stages, the gradients of replicas."""
FreeDegree = Literal["ep", "cp"]


TUNNEL_NETDEV = "holmes-wg"


def tunnel_address(node_rank: int) -> str:
    """Return a node's address in the tunnel, from the block for network tests (RFC 2544), which no site routes."""
    return str(IPv4Address("198.18.0.0") + 1 + node_rank)


class EnvironmentVariable(Record):
    """One variable of a node's environment, and why it is set."""

    name: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: OneLine
    reason: str


class NodeFabric(Record):
    """The fabric of a node's cluster, for the groups that a trainer makes by itself."""

    network: str
    netdev: str
    net_name: NetName | None  # NCCL's name for the transport


class Node(Record):
    """A host inside the job."""

    node_rank: int
    host: str
    cluster: str
    access: Access
    num_ranks: int
    shared_netdev: str  # the interface on the network all clusters share
    shared_address: str  # other nodes send control traffic there
    tunnel_endpoint: str | None = None  # other nodes send encrypted traffic there; None without a tunnel
    fabric: NodeFabric | None = None  # None without one, and for the bundled runtime, whose groups are in the plan
    environment: tuple[EnvironmentVariable, ...]


class TunnelHub(Record):
    """The host that relays the tunnel of islands between clusters without a direct path.

    Its `node` is on an island or has no ranks. Other clusters reach it at `address`. `relayed`: pairs of clusters.
    """

    node: Node
    address: IPv4
    relayed: tuple[tuple[str, str], ...]

    def lies_between(self, one: Node, other: Node) -> bool:
        """Return True if the path between two nodes leads through the hub, and neither of them is the hub."""
        pairs = ((one.cluster, other.cluster), (other.cluster, one.cluster))
        return self.node.host not in (one.host, other.host) and any(pair in self.relayed for pair in pairs)


class PlanStage(Record):
    """Consecutive layers, and the clusters that hold them."""

    index: int  # the stage is on pipeline rank index % pp
    first_layer: int
    stop_layer: int  # the first one after it
    clusters: tuple[str, ...]  # their slots hold it; several only when one is too small

    @property
    def num_layers(self) -> int:
        """The number of layers that the stage holds."""
        return self.stop_layer - self.first_layer


class PlanRank(Record):
    """One process of the job on its slot."""

    rank: int
    host: str
    cluster: str
    local_rank: int
    gpu: int | None  # the device index on the host; None on CPU
    pp_rank: int
    dp_rank: int
    tp_rank: int
    cpus: Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")] | None = None
    """`0-7,64-71`: its share of the CPUs near its GPU, as Linux numbers them; None if not known."""


class PlanGroup(Record):
    """One process group: its members, and the network it must use."""

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    network: str  # a cluster's fabric, or "shared"
    interfaces: tuple[str, ...]  # netdevs on it, one per member in the order of `ranks`
    net_name: NetName | None  # NCCL's name for the transport
    nvlink: bool = False  # NCCL prefers NVLink, which joins all hosts of the group, and the rate is NVLink's
    bandwidth_bytes_per_s: float | None
    """The least share of a NIC that a member gets; None if all are on one host and the NIC's rate is not known."""
    trunk_bytes_per_s: float | None = None
    """The least share of a trunk between clusters while the group communicates; None if not known."""
    latency_s: float = 0.0  # the longest latency between two members; 0 if it was not measured
    streams: int = 1  # parallel TCP connections that it takes to reach the rate
    codec: Codec = "none"  # of messages on an edge (axis pp_forward or pp_backward); others are never packed

    @property
    def rate_bytes_per_s(self) -> float | None:
        """The group's bandwidth: the smaller of both shares; None if neither is known."""
        return min((r for r in (self.bandwidth_bytes_per_s, self.trunk_bytes_per_s) if r is not None), default=None)


class InterfaceTraffic(Record):
    """Bytes that one interface carries per step."""

    host: str
    netdev: str
    network: str
    sent_bytes: int
    received_bytes: int


class Prediction(Record):
    """Seconds of one step and its parts, which add up to it along the critical path; memory and traffic."""

    step_s: float
    compute_s: float  # the busiest rank's
    bubble_s: float
    exposed_tp_s: float  # these three: the time that each kind of traffic adds
    exposed_edge_s: float
    exposed_dp_s: float
    optimizer_s: float
    tokens_per_s: float
    memory_bytes: tuple[int, ...]  # one rank's, by pipeline rank
    host_memory_bytes: tuple[int, ...] = ()  # likewise, for offloaded states and an island's copies; or empty
    microbatch_compute_s: tuple[tuple[float, ...], ...]
    """By pipeline rank and replica: forward and backward of one micro-batch, without tensor parallel collectives."""
    traffic: tuple[InterfaceTraffic, ...]


class Alternative(Record):
    """A runner-up of the search."""

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    schedule: ScheduleName
    chunks: int = 1
    recompute: Recompute
    zero: Zero = 1
    crossing: Crossing
    step_s: float
    why: str  # the reason why it is slower


class SolveReport(Record):
    """The result of the search. Its seconds are closed forms; `step_bound_s` and the prediction's are simulated."""

    solver: str
    status: Literal["optimal", "near optimal", "time limit", "fixed"]
    objective_s: float  # the least found, which the integer program minimizes
    bound_s: float  # no placement of any candidate takes less; for a plan without ZeRO-3, none without it
    gap: float  # (objective - bound) / objective; 0 is a proof
    placement_s: float  # this plan's; above the objective if simulation preferred another of the best
    candidates: int
    programs: int  # integer programs that were solved, the certificate among them
    certificate_s: float | None = None  # the least of placements with this plan's degrees, by an integer program
    simulated: int | None = None  # placements; this plan's step is the least, except for a trade with memory
    step_bound_s: float | None = None  # no candidate's simulated step is shorter in any placement and schedule
    step_gap: float | None = None  # (prediction's step - step_bound) / step
    crossing: Crossing
    alternatives: tuple[Alternative, ...] = ()  # the next best and the best of every other crossing, best first

    @model_validator(mode="before")
    @classmethod
    def _without_unequal(cls, said: object) -> object:
        """Drop a key that plans had until 2026-11-26, mostly null: runs with such plans may still be under way."""
        if isinstance(said, dict) and said.get("unequal", "") is None:
            return {key: value for key, value in said.items() if key != "unequal"}
        return said


class SourceFile(Record):
    """A file the plan was made from."""

    path: str  # as seen from the plan's folder
    digest: str  # with the overrides
    overrides: tuple[OneLine, ...] = ()
    """KEY=VALUE, which replace the file's values, as given by `--set`."""


class Plan(FileRecord):
    """The whole placement of one job on one inventory."""

    KIND: ClassVar[str] = "plan"
    RENEW: ClassVar[str] = "holmes plan job.yaml"
    RARE: ClassVar[tuple[str, ...]] = ("modes", "sketch", "free_degrees")

    schema_version: Literal[1] = 1
    inventory: SourceFile
    sketch: OneLine | None = None  # from an inventory of machines that were never probed: such a plan is not launched
    job_source: SourceFile
    job: Job
    free_degrees: tuple[FreeDegree, ...] = ()  # of `job.parallel`: chosen by the planner, not set in job.yaml
    order: Order
    tp: int
    pp: int
    dp: int
    data_parallel: DataParallel = "flat"
    zero: Zero = 1
    micro_batch_size: int
    microbatches: tuple[int, ...]  # by replica, per step
    schedule: ScheduleName
    chunks: int  # stages that a pipeline rank holds
    extra_in_flight: tuple[int, ...]
    """For the schedule "eager", by edge: micro-batches in flight in addition to 1F1B's. Else empty."""
    room_in_flight: tuple[int, ...] = ()
    """By pipeline rank, the micro-batches that memory has room for under "eager" or "1f1b": a run may adapt up to as
    many in flight. Empty for other schedules, and where memory is not known.
    """
    recompute: Recompute
    optimizer_offload: bool = False
    nodes: tuple[Node, ...]
    stages: tuple[PlanStage, ...]
    ranks: tuple[PlanRank, ...]
    groups: tuple[PlanGroup, ...]
    prediction: Prediction
    solve: SolveReport
    usual_order: Prediction | None  # the same job with ranks in the order of hosts
    modes: Modes | None = None  # the other options, if job.yaml allows islands

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""
        return self.tp * self.pp * self.dp

    @property
    def engine_dp(self) -> int:
        """The data parallel degree as job.yaml and engines count it: `dp` without the ranks that share a sequence."""
        return self.dp // self.job.cp

    @property
    def job_to_plan(self) -> Job:
        """The job without the degrees that the planner chose, since another inventory may need others."""
        return self.job.with_parallel(**dict.fromkeys(self.free_degrees))

    @property
    def dp_group_size(self) -> int:
        """The number of replicas that exchange in one group: all, or in two levels those inside a cluster."""
        return min((len(group.ranks) for group in self.groups if group.axis == "dp"), default=1)

    @property
    def optimizer_instances(self) -> int:
        """The number of clusters in which a trainer keeps all optimizer states; 1 if replicas share them over all."""
        return 1 if self.job.is_bundled or self.zero == 3 else self.dp // self.dp_group_size

    @property
    def weight_shards(self) -> int:
        """The number of ranks that hold a layer's weights together: a group of replicas under ZeRO-3, else 1."""
        return self.dp_group_size if self.zero == 3 else 1

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


class IslandsPlan(FileRecord):
    """Clusters that train apart, each with an ordinary plan, and have the same parameters after every round.

    The job of an island's plan is the whole job with the island's own batch, steps and `islands.inner_steps`.
    """

    KIND: ClassVar[str] = "islands_plan"
    RENEW: ClassVar[str] = "holmes plan job.yaml"
    RARE: ClassVar[tuple[str, ...]] = ("tunnel_hub",)

    schema_version: Literal[1] = 1
    inventory: SourceFile
    job_source: SourceFile
    job: Job
    rounds: int  # enough to read the samples of the job's steps
    islands: tuple[Plan, ...]
    prediction: Round
    modes: Modes
    tunnel_hub: TunnelHub | None = None

    @property
    def sketch(self) -> str | None:
        """The sketch that the islands are planned for; None if their hosts were probed."""
        return self.islands[0].sketch

    @property
    def encrypts(self) -> bool:
        """True if a tunnel joins all hosts of all islands."""
        return self.islands[0].nodes[0].tunnel_endpoint is not None

    @property
    def tunnel_nodes(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes of each island, then the tunnel's hub if it is not on an island."""
        islands = tuple(plan.nodes for plan in self.islands)
        on_islands = {node.host for nodes in islands for node in nodes}
        if self.tunnel_hub is None or self.tunnel_hub.node.host in on_islands:
            return islands
        return (*islands, (self.tunnel_hub.node,))

    @property
    def run_s(self) -> float:
        """The predicted seconds of an undisturbed run."""
        return self.rounds * self.prediction.round_s + self.prediction.end_s

    @property
    def inner_steps(self) -> tuple[int, ...]:
        """The inner steps per round, by island."""
        return tuple(plan.job.islands.chosen().inner_steps for plan in self.islands if plan.job.islands is not None)

    @property
    def num_exchanges(self) -> int:
        """The outer syncs of an undisturbed run. The last one carries all parameters."""
        assert self.job.islands is not None  # the record holds it
        return self.rounds * self.job.islands.chosen().fragments

    @property
    def round_samples(self) -> tuple[int, ...]:
        """The samples of a round, by island: its weight in the mean."""
        batches = (plan.job.global_batch_size for plan in self.islands)
        return tuple(steps * batch for steps, batch in zip(self.inner_steps, batches, strict=True))

    def own_data(self, island: int) -> str | None:
        """Return the cluster whose own data an island reads; None if it reads the job's."""
        cluster = self.islands[island].ranks[0].cluster
        return cluster if self.job.islands is not None and cluster in self.job.islands.data else None

    @model_validator(mode="after")
    def _hub_relays_between_islands(self) -> IslandsPlan:
        hub, nodes = self.tunnel_hub, [node for plan in self.islands for node in plan.nodes]
        if hub is None:
            return self
        if unknown := {name for pair in hub.relayed for name in pair} - {node.cluster for node in nodes}:
            raise ValueError(f"the tunnel's hub relays for {sorted(unknown)}, which are on no island")
        if hub.node not in nodes and (hub.node.num_ranks or hub.node.node_rank or not hub.node.tunnel_endpoint):
            raise ValueError(f"the node of {hub.node.host}, the tunnel's hub, is not that of its island, or has ranks")
        return self

    @model_validator(mode="after")
    def _islands_are_apart(self) -> IslandsPlan:
        if self.job.islands is None or len(self.islands) < 2 or len(self.inner_steps) < len(self.islands):
            raise ValueError(f"{len(self.islands)} islands of a job, each with `islands`, must be two or more")
        hosts = [node.host for plan in self.islands for node in plan.nodes]
        if len(set(hosts)) < len(hosts):
            raise ValueError("a host is in two islands")
        nodes = [node for each in self.tunnel_nodes for node in each]
        in_tunnel = [node.shared_address for node in nodes if node.tunnel_endpoint]
        if in_tunnel and in_tunnel != [tunnel_address(number) for number in range(len(nodes))]:
            raise ValueError(f"the hosts' addresses {in_tunnel} are not those of one tunnel")
        return self
