"""Decide everything a launch will do, touching nothing: this is the dry run, and what is sent is equal to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holmes_core.errors import HolmesError
from holmes_core.plan import Node, Plan, PlanGroup
from holmes_core.record import Record
from holmes_runtime.node_config import NodeConfig
from holmes_runtime.run_config import Corpus, Emulation, Group, ModelShape, Optimizer, Rank, RunConfig, Stage
from launcher.bundle import NODE_CONFIG_FILE, RUN_CONFIG_FILE, NodeBundle, node_folder

SILENCE_LIMIT_S = 15.0  # a node or a controller not heard for so long is taken for lost; both speak every 2 s


def prepare(plan: Plan, run_id: str) -> tuple[NodeBundle, ...]:
    """Every file and command of every node, nodes in order. Raises HolmesError if the runtime cannot run the plan."""
    run_config = run_config_of(plan, run_id)
    return tuple(_bundle(plan, node, run_config) for node in plan.nodes)


def run_config_of(plan: Plan, run_id: str) -> RunConfig:
    """The plan in the runtime's own words."""
    if plan.tp != 1:
        raise HolmesError(
            f"the plan has tp={plan.tp}; the bundled runtime does not split layers yet",
            "set `parallel: {tp: 1}` in job.yaml and plan again",
        )
    job = plan.job
    try:
        return RunConfig(
            schema_version=1,
            run_id=run_id,
            device=job.device,
            seed=job.seed,
            steps=job.steps,
            global_batch_size=job.global_batch_size,
            micro_batch_size=plan.micro_batch_size,
            pp=plan.pp,
            dp=plan.dp,
            tp=plan.tp,
            model=ModelShape(**_shared_fields(job.model, ModelShape)),
            emulation=Emulation(**_shared_fields(job.compute.emulate, Emulation)) if job.compute.emulate else None,
            corpus=Corpus(**_shared_fields(job.data, Corpus)),
            optimizer=Optimizer(**_shared_fields(job.optimizer, Optimizer)),
            stages=tuple(Stage(stage.index, stage.first_layer, stage.stop_layer) for stage in plan.stages),
            ranks=tuple(
                Rank(rank.rank, rank.host, rank.cluster, rank.pp_rank, rank.dp_rank, rank.tp_rank)
                for rank in plan.ranks
            ),
            groups=tuple(_group(group) for group in plan.groups),
            schedule="1f1b",
            timeout_s=job.timeout_s,
            threads_per_rank=job.threads_per_slot,
        )
    except ValueError as error:
        raise HolmesError(f"the runtime refuses the plan: {error}", "correct job.yaml and plan again") from None


def _shared_fields(record: Record, kind: type) -> dict[str, Any]:
    """What `record` says under the names that the runtime's `kind` knows."""
    return record.model_dump(include={field.name for field in fields(kind)})


def _group(group: PlanGroup) -> Group:
    assert group.axis != "tp"
    return Group(group.name, group.axis, group.ranks, group.interfaces, group.net_name)


def _bundle(plan: Plan, node: Node, run_config: RunConfig) -> NodeBundle:
    first = plan.nodes[0]
    config = NodeConfig(
        run_id=run_config.run_id,
        host=node.host,
        node_rank=node.node_rank,
        num_nodes=len(plan.nodes),
        num_ranks=node.num_ranks,
        master_address=first.shared_address,
        master_port=plan.job.master_port,
        interfaces=_interfaces(plan, node),
        environment={variable.name: variable.value for variable in node.environment},
        silence_limit_s=SILENCE_LIMIT_S,
    )
    files = {
        RUN_CONFIG_FILE: run_config.to_json(),
        NODE_CONFIG_FILE: config.to_json(),
    }
    return NodeBundle(node, node_folder(run_config.run_id, node.node_rank), files)


def _interfaces(plan: Plan, node: Node) -> tuple[str, ...]:
    """Every interface the node's ranks will use, each once."""
    hosts: Mapping[int, str] = {rank.rank: rank.host for rank in plan.ranks}
    used = {
        interface
        for group in plan.groups
        for rank, interface in zip(group.ranks, group.interfaces, strict=True)
        if hosts[rank] == node.host
    }
    return tuple(sorted(used | {node.shared_netdev}))
