"""A published step predicted: its pipeline simulated, its memory added up, all by the planner's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.published_steps.measurements import Measurement, measurements
from benchmarks.published_steps.sites import Site
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.schedule import ScheduleName, microbatches_in_flight
from planner.cost.collectives import (
    PassTimes,
    Path,
    shard_exchange_s,
    tensor_parallel_bytes,
    tensor_parallel_times,
)
from planner.cost.compute_time import head_s, layer_s, optimizer_s
from planner.cost.counts import Execution, edge_bytes, layer_activation_bytes, memory_bytes
from planner.schedule.buckets import Bucket
from planner.schedule.simulate import Order, Pipeline, PipelineTimes, simulate


def predicted_s(row: Measurement, site: Site) -> float:
    """Seconds of the step of `row`, whose micro-batch size is known or chosen; simulated."""
    assert row.micro_batch_size is not None
    return _step_s(row, site, row.micro_batch_size)


def chosen_size(row: Measurement, site: Site) -> Measurement:
    """The row with the micro-batch size the model finds fastest where none is published."""
    if row.micro_batch_size is not None:
        return row
    sizes = fitting_sizes(row, site)
    return replace(row, micro_batch_size=min(sizes, key=lambda size: _step_s(row, site, size)))


def calibrates(row: Measurement) -> bool:
    """Whether constants were fitted to the row: every second one of a table, never of V7."""
    rows = [other for other in measurements() if other.table == row.table]
    return row.table != "V7" and rows.index(row) % 2 == 1


def fitting_sizes(row: Measurement, site: Site) -> list[int]:
    """The powers of two that divide a replica's batch and fit in memory; 1 if none does."""
    replica = row.global_batch_size // row.dp
    round_size = row.pp if row.chunks > 1 else 1
    sizes = [size for size in (1, 2, 4, 8, 16) if replica % (size * round_size) == 0]
    return [size for size in sizes if predicted_bytes(row, site, size) <= site.memory_bytes] or [1]


def execution_of(row: Measurement, site: Site, micro_batch_size: int) -> Execution:
    """How the row was run."""
    return Execution(
        row.tp,
        row.dp if site.sharded_states else 1,
        micro_batch_size,
        site.value_bytes,
        row.recompute,
        sequence_parallel=site.sequence_parallel(row),
        fused_attention=site.fused_attention,
        chunked_loss=False,
    )


def _step_s(row: Measurement, site: Site, micro_batch_size: int) -> float:
    execution = execution_of(row, site, micro_batch_size)
    layers = cut(row)
    stages = len(layers)
    shards = _tp_s(row, site, execution)
    layer, head = layer_s(row.model, execution, site.speed, shards), head_s(row.model, execution, site.speed)
    forward = [count * (layer.forward_s + shards.forward_s) for count in layers]
    backward = [count * (layer.backward_s + shards.backward_s) for count in layers]
    forward[-1] += head.forward_s
    backward[-1] += head.backward_s
    edges = (_edge_s(row, site, execution),) * (stages - 1)
    times = PipelineTimes(tuple(forward), tuple(backward), edges, edges)
    m = row.global_batch_size // (row.dp * micro_batch_size)
    order = Order("interleaved" if row.chunks > 1 else "1f1b", row.pp, m, row.chunks)
    buckets = [_buckets(row, site, layers, stage, backward[stage]) for stage in range(stages)] if row.dp > 1 else []
    parameters = max(
        stage_parameters(row.model, sum(layers[r :: row.pp]), r == 0, False, row.tp) for r in range(row.pp)
    )
    return simulate([Pipeline(order, times)], buckets) + optimizer_s(parameters, execution, site.speed)


def cut(row: Measurement) -> list[int]:
    """Layers of each stage, even, the remainder on the first ones."""
    stages = row.pp * row.chunks
    share, rest = divmod(row.model.num_layers, stages)
    return [share + (stage < rest) for stage in range(stages)]


def _tp_s(row: Measurement, site: Site, execution: Execution) -> PassTimes:
    per_host = min(row.tp, site.gpus_per_host)
    across = Path(site.host_bytes_per_s * site.sync_efficiency, site.inside.latency_s)
    size = tensor_parallel_bytes(row.model, execution)
    one_s = 2 * hierarchical_exchange_s(size, row.tp // per_host, per_host, site.inside, across)
    return tensor_parallel_times(row.recompute, one_s * site.exposed_tp)


def _edge_s(row: Measurement, site: Site, execution: Execution) -> float:
    """One message: all GPUs of a host send at once, unless the next stage is on the same host."""
    if row.tp * row.dp * row.pp <= site.gpus_per_host:
        return edge_bytes(row.model, execution) / site.inside.bandwidth_bytes_per_s + site.inside.latency_s
    sending = min(site.gpus_per_host, row.tp * row.dp)
    share = site.host_bytes_per_s * site.edge_efficiency / sending
    return edge_bytes(row.model, execution) / share + site.inside.latency_s


def _buckets(row: Measurement, site: Site, layers: Sequence[int], stage: int, backward_s: float) -> list[Bucket]:
    """A stage's gradients: a bucket a layer where reduction overlaps, else one that waits for the whole backward."""
    ends = (stage == 0, stage == len(layers) - 1)
    size = stage_parameters(row.model, layers[stage], *ends, row.tp)
    per_host = min(row.dp, max(1, site.gpus_per_host // row.tp))
    groups = min(site.gpus_per_host, row.tp * row.dp) / per_host
    across = Path(site.host_bytes_per_s * site.sync_efficiency / groups, site.inside.latency_s)
    hosts = -(-row.dp // per_host)

    def exchange_s(value_bytes: int) -> float:
        return hierarchical_exchange_s(size * value_bytes, hosts, per_host, site.inside, across)

    reduce_s, gather_s = exchange_s(site.gradient_bytes), exchange_s(site.gather_bytes)
    if not site.gather_bytes:
        reduce_s, gather_s = 2 * reduce_s, 0.0
    if not site.overlap:
        return [Bucket(backward_s, reduce_s, gather_s)]
    parts = layers[stage]
    return [Bucket(backward_s / parts, reduce_s / parts, gather_s / parts)] * parts


def hierarchical_exchange_s(size_bytes: float, num_hosts: int, per_host: int, inside: Path, across: Path) -> float:
    """Seconds of one reduce-scatter or all-gather over `num_hosts` hosts of `per_host` members each.

    First inside each host, then every member's 1/per_host of the value with its peers on the other hosts; these
    per_host rings share the host's NICs, whose whole bandwidth is that of `across`.
    """
    shared = Path(across.bandwidth_bytes_per_s / per_host, across.latency_s)
    inside_s = shard_exchange_s(size_bytes, per_host, inside)
    return inside_s + shard_exchange_s(size_bytes / per_host, num_hosts, shared)


def predicted_bytes(row: Measurement, site: Site, micro_batch_size: int) -> float:
    """Bytes of the fullest rank."""
    execution = execution_of(row, site, micro_batch_size)
    layers = cut(row)
    m = row.global_batch_size // (row.dp * micro_batch_size)
    name: ScheduleName = "interleaved" if row.chunks > 1 else "1f1b"

    def rank_bytes(rank: int) -> float:
        held = microbatches_in_flight(name, row.pp, m, rank, row.chunks)
        own, is_first, is_last = layers[rank :: row.pp], rank == 0, rank == row.pp - 1
        kept = sum(count * each for count, each in zip(own, held, strict=True)) * layer_activation_bytes(
            row.model, execution
        )
        parameters = stage_parameters(row.model, sum(own), is_first, is_last, row.tp)
        more = parameters * site.extra_state_bytes + (site.activation_factor - 1) * kept + site.reserve_bytes
        return memory_bytes(row.model, execution, own, held, is_first, is_last) + more

    return max(map(rank_bytes, range(row.pp)))
