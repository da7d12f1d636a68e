"""Decide everything that a launch will do, without touching a host. A dry run shows exactly what a launch sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path

import holmes_runtime
from holmes_core.errors import HolmesError
from holmes_core.node_settings import is_fixed
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Node, Plan
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.model_shape import CODE_FOLDER
from holmes_runtime.config.node_config import TRAINER_FILE, NodeConfig, TunnelConfig, hca_ports
from holmes_runtime.config.rank_grid import Group, NetName, Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.config.trainable import first_adapters
from holmes_runtime.config.trainer_config import SHARED, TrainerConfig, TrainerNetwork, TrainerRank
from launcher.prepare.bundle import NODE_CONFIG_FILE, PLAN_FILE, RUN_CONFIG_FILE, NodeBundle, Parcel
from launcher.prepare.engine_arguments import command_of
from launcher.prepare.expectation import expectation_of
from launcher.prepare.user_variables import UserVariables

# Ranks wait this much longer than the controller. It asks all ranks for their positions and can name the one that holds
# up the others, whereas a rank that gives up first only knows that some other rank did not answer.
VERDICT_MARGIN_S = 10.0
SILENCE_LIMIT_S = 15.0  # a node or controller silent for this long counts as lost; both send every 2 s

IN_ANOTHER_FORM = {"schema_version", "compile", "model", "stages", "ranks", "groups", "timeout_s"}
"""Fields of a run configuration that the job or the plan has under the same name, but with another value."""


@dataclass(frozen=True)
class Attempt:
    """One start of a run: the first, a restart, or one with a new plan. `resume`: continue from the last checkpoint.

    `from_scratch`: begin at step 1 if there is no checkpoint, instead of reporting a fault. `resume_step`: go back to
    the checkpoint after that many steps, which becomes the last one. `outer_sync`: an island's syncs with the others.
    `own_data`: the cluster whose own data the island reads. `reason`: why the attempt starts, for a trainer's own
    command, which resumes by itself.
    """

    run_id: str
    number: int = 0
    detached: bool = False
    resume: bool = False
    from_scratch: bool = False
    resume_step: int | None = None
    outer_sync: OuterSync | None = None
    own_data: str | None = None
    reason: str = "the first start"


def prepare(plan: Plan, attempt: Attempt, variables: UserVariables) -> tuple[NodeBundle, ...]:
    """Return every node's files and commands, in node order. Raises HolmesError if the runtime cannot run the plan."""
    of_plan = Parcel({**variables.files, **plan_files(plan, attempt)})
    own = (Parcel(code),) if (code := code_files(variables)) else ()
    parcels = (Parcel(runtime_files()), of_plan, *own)
    return tuple(_bundle(plan, node, attempt, variables, parcels) for node in plan.nodes)


def runtime_files() -> dict[str, str]:
    """Return the sources of the bundled runtime, by file names on the node."""
    package = Path(str(files(holmes_runtime)))
    sources = sorted(package.rglob("*.py"))
    return {str(file.relative_to(package.parent)): file.read_text(encoding="utf-8") for file in sources}


def code_files(variables: UserVariables) -> dict[str, str]:
    """Return the user's own code, by file names on the node; empty if the job names none."""
    code = variables.code
    return {f"{CODE_FOLDER}/{name}": content for name, content in code.files.items()} if code else {}


def secret_files(variables: UserVariables) -> dict[str, str]:
    """Return the text of each secret, by file name."""
    return {f"secret-{name}": text for name, text in variables.secrets.items()}


def plan_files(plan: Plan, attempt: Attempt) -> dict[str, str]:
    """Return the files that are the same on all nodes. They name the plan, not the run, so a host gets them once."""
    if not plan.job.is_bundled:
        refuse_prediction(plan)
        config = trainer_config_of(plan, attempt.outer_sync, plan.job.timeout_s + VERDICT_MARGIN_S)
        return {TRAINER_FILE: config.to_json(), PLAN_FILE: plan.to_json()}
    run_id = plan.digest().removeprefix("sha256:")[:12]
    run_config = replace(
        run_config_of(plan, run_id),
        resume=attempt.resume,
        from_scratch=attempt.from_scratch,
        resume_step=attempt.resume_step,
        outer_sync=attempt.outer_sync,
    )
    return {
        RUN_CONFIG_FILE: run_config.to_json(),
        PLAN_FILE: plan.to_json(),
    }


def node_environment(node: Node, variables: UserVariables) -> dict[str, str]:
    """Return the plan's and the user's variables; the user's win. Raises HolmesError for one the plan has to set."""
    planned = {variable.name: variable.value for variable in node.environment}
    for name in (*variables.environment, *variables.secrets):
        if name in planned and is_fixed(name) and variables.environment.get(name) != planned[name]:
            raise HolmesError(
                f"job.yaml: launch sets {name}, which the plan sets to {planned[name]!r} on {node.host}",
                "leave it out; the plan derives it from hosts.yaml and job.yaml",
            )
    return {**planned, **variables.environment}


def reasons_of(node: Node, variables: UserVariables) -> dict[str, str]:
    """Return, by name, the reason for each variable of `node_environment`."""
    planned = {variable.name: variable.reason for variable in node.environment}
    return {**planned, **dict.fromkeys(variables.environment, "launch.environment in job.yaml")}


def env_file(variables: Mapping[str, str], reasons: Mapping[str, str], plan_digest: str) -> str:
    """Return variables as KEY=VALUE lines, sorted by name, each below its reason.

    Without quotes and `export`, shells, `docker --env-file` and systemd all read the same values.
    """
    lines = [f"# plan {plan_digest}"]
    for name in sorted(variables):
        lines += [f"# {' '.join(reasons[name].split())}", f"{name}={variables[name]}"]
    return "\n".join(lines) + "\n"


def refuse_prediction(plan: Plan | IslandsPlan) -> None:
    """Raise HolmesError for a plan of machines that do not exist, or of a trainer without a command."""
    if plan.sketch is not None:
        raise HolmesError(
            f"the plan is for a sketch, not for probed machines ({plan.sketch}): there are no hosts to start it on",
            "probe the machines once they are there, then plan again: `holmes probe hosts.yaml`",
        )
    if not plan.job.is_launched:
        raise HolmesError(
            f"the plan only predicts {plan.job.engine}: `trainer` in job.yaml has no command to launch",
            "add `command` to `trainer`, or remove `trainer` to train with the bundled runtime; then plan again",
        )


def run_config_of(plan: Plan, run_id: str) -> RunConfig:
    """Return the plan as the runtime's configuration. Raises HolmesError if the runtime refuses it."""
    job = plan.job
    refuse_prediction(plan)
    assert job.is_bundled
    names = {field.name for field in fields(RunConfig)} - IN_ANOTHER_FORM
    same = {name: getattr(record, name) for record in (job, plan) for name in names & set(type(record).model_fields)}
    try:
        return RunConfig(
            **same,
            run_id=run_id,
            ep=job.ep,
            lossiest_codec=job.wire.edges,
            cp=job.cp,
            value_type=job.value_type,
            compile=job.compiles,
            model=replace(job.model, factory=model_file(job)),
            emulation=job.compute.emulate,
            lora=job.trainable.lora if job.trainable is not None else None,
            expected_tokenizer=job.expected_tokenizer,
            stages=tuple(Stage(each.index, each.first_layer, each.stop_layer) for each in plan.stages),
            ranks=tuple(
                Rank(each.rank, each.host, each.cluster, each.pp_rank, each.dp_rank, each.tp_rank)
                for each in plan.ranks
            ),
            groups=tuple(
                Group(each.name, each.axis, each.ranks, each.interfaces, each.net_name, each.streams, each.codec)
                for each in plan.groups
            ),
            expectation=expectation_of(plan),
            timeout_s=job.timeout_s + VERDICT_MARGIN_S,
            threads_per_rank=job.threads_per_slot,
        )
    except ValueError as error:
        raise HolmesError(f"the runtime refuses the plan: {error}", "correct job.yaml and plan again") from None


def trainer_config_of(plan: Plan, outer_sync: OuterSync | None, timeout_s: float) -> TrainerConfig:
    """Return the ranks' command, and each rank's interfaces with the one in its cluster's fabric first.

    With `outer_sync` the ranks are an island, whose waits are limited to `timeout_s`.
    """
    assert plan.job.trainer is not None
    fabrics = {node.fabric.network: node.fabric.net_name for node in plan.nodes if node.fabric is not None}
    nodes = {node.host: node for node in plan.nodes}
    ranks = []
    for rank in plan.ranks:
        node = nodes[rank.host]
        fabric = {} if node.fabric is None else {node.fabric.network: node.fabric.netdev}
        ranks.append(TrainerRank(rank.host, rank.local_rank, {**fabric, SHARED: node.shared_netdev}))
    on_shared: NetName | None = "Socket" if plan.job.device == "cuda" else None
    networks = (*(TrainerNetwork(name, net) for name, net in fabrics.items()), TrainerNetwork(SHARED, on_shared))
    tokens = plan.job.global_batch_size * plan.job.model.seq_length
    island = None
    if outer_sync is not None:
        island = IslandTraining(outer_sync, plan.job.steps, tokens, plan.world_size, timeout_s)
    return TrainerConfig(command_of(plan), plan.job.trainer.folder, networks, tuple(ranks), island)


def model_file(job: Job) -> str | None:
    """Return the path of `model.factory` on a host."""
    return f"{CODE_FOLDER}/{job.model.factory}" if job.launch.code is not None else job.model.factory


def _bundle(
    plan: Plan,
    node: Node,
    attempt: Attempt,
    variables: UserVariables,
    parcels: tuple[Parcel, ...],
) -> NodeBundle:
    environment = node_environment(node, variables)
    started = {"HOLMES_ATTEMPT": str(attempt.number), "HOLMES_ATTEMPT_REASON": attempt.reason}
    gpus = [rank.gpu for rank in plan.ranks if rank.host == node.host]
    checkpoint = plan.job.checkpoint
    config = NodeConfig(
        run_id=attempt.run_id,
        host=node.host,
        node_rank=node.node_rank,
        num_ranks=node.num_ranks,
        node_addresses=tuple(node.shared_address for node in plan.nodes),
        master_port=plan.job.master_port,
        addresses=dict.fromkeys(planned_interfaces(plan, node)) | {node.shared_netdev: node.shared_address},
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
        checkpoint_path=checkpoint.path if checkpoint else None,
        inputs=inputs_of(plan.job, reads_weights=not attempt.resume or attempt.from_scratch),
        environment=environment if plan.job.is_bundled else environment | started,
        secrets=tuple(sorted(variables.secrets)),
        silence_limit_s=SILENCE_LIMIT_S,
        detached=attempt.detached,
        tunnel=_tunnel(plan, node) if attempt.outer_sync is None else None,  # that of islands is already up
        meets=attempt.outer_sync is not None,
    )
    secrets = secret_files(variables)
    own_files = {
        NODE_CONFIG_FILE: config.to_json(),
        f"node-{node.node_rank}.env": env_file(environment, reasons_of(node, variables), plan.digest()),
        **secrets,
    }
    return NodeBundle(node, attempt.run_id, attempt.number, own_files, frozenset(secrets), parcels)


def _tunnel(plan: Plan, node: Node) -> TunnelConfig | None:
    """Return the tunnel of the node; None if the plan encrypts nothing."""
    endpoints = tuple(each.tunnel_endpoint for each in plan.nodes if each.tunnel_endpoint is not None)
    return TunnelConfig(node.shared_netdev, endpoints) if len(endpoints) == len(plan.nodes) else None


def inputs_of(job: Job, reads_weights: bool = True) -> tuple[str, ...]:
    """Return the paths that every host must have: data, tokenizer, weights, and a model file that is not sent.

    A run that can only continue from a checkpoint needs no first adapters, and needs `weights` only if they are frozen
    and therefore not in the checkpoint. A rehearsal needs neither.
    """
    is_real = job.compute.emulate is None
    model_file = (job.model.factory or "").rpartition(":")[0]
    data = job.data.paths if job.data is not None else ()
    others = (
        job.weights if is_real and (reads_weights or job.trainable is not None) else None,
        first_adapters(job.trainable) if is_real and reads_weights else None,
        model_file if Path(model_file).is_absolute() else None,
    )
    return (*data, *(each for each in others if each is not None))


def planned_interfaces(plan: Plan, node: Node) -> tuple[str, ...]:
    """Return every interface that the node's ranks will use, without repeats."""
    hosts: Mapping[int, str] = {rank.rank: rank.host for rank in plan.ranks}
    used = {
        interface
        for group in plan.groups
        for rank, interface in zip(group.ranks, group.interfaces, strict=True)
        if hosts[rank] == node.host
    }
    return tuple(sorted(used | {node.shared_netdev}))


def planned_rdma_ports(node: Node) -> tuple[str, ...]:
    """Return the RDMA ports that NCCL uses inside the cluster, such as `mlx5_0:1`; none if a library chooses them."""
    return hca_ports(next((each.value for each in node.environment if each.name == "NCCL_IB_HCA"), ""))
