"""Batch scripts for Slurm: one for a single job on the plan's nodes, and one where each cluster is a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.plan import Node, Plan
from launcher.emit.gpu_request import gpus_to_request
from launcher.emit.start_script import START_SCRIPT, slurm_name

SAVE_BEFORE_END_S = 120  # to finish the current step and save the checkpoint


@dataclass(frozen=True)
class _Component:
    """The nodes of one request, in plan order. All need the same number of GPUs."""

    nodes: tuple[Node, ...]
    gpus: int | None  # per node; None on CPUs
    hosts: tuple[str, ...]  # names in Slurm, one per rank in rank order

    @property
    def options(self) -> str:
        """The options for sbatch."""
        names = ",".join(map(slurm_name, self.nodes))
        asked = f"--nodes={len(self.nodes)} --ntasks={len(self.hosts)} --nodelist={names} --exclusive --mem=0"
        return asked if self.gpus is None else f"{asked} --gpus-per-node={self.gpus}"

    def step(self, hostfile: str) -> str:
        """Return the arguments for srun: one task per line of `hostfile`. Each task may use its whole node."""
        asked = f"--nodelist=./{hostfile} --ntasks={len(self.hosts)} --distribution=arbitrary"
        free = "--export=ALL --mem=0 --cpu-bind=none --mpi=none"
        gpus = "" if self.gpus is None else f" --gpus-per-node={self.gpus} --gpu-bind=none"
        return f"{asked} {free}{gpus} ./{START_SCRIPT}"


def slurm_files(plan: Plan) -> dict[str, str]:
    """Return `job.sbatch` if all nodes need equally many GPUs, and `het.sbatch` if not, or if they span clusters."""
    whole = _components(plan, by_cluster=False)
    parts = _components(plan, by_cluster=True)
    files = _job(plan, whole[0]) if len(whole) == 1 else {}
    return {**files, **(_heterogeneous_job(plan, parts) if len(parts) > 1 else {})}


def _components(plan: Plan, by_cluster: bool) -> tuple[_Component, ...]:
    """Group nodes with equal requests, across all clusters or within each one."""
    gpus = {node.host: gpus_to_request(plan, node) for node in plan.nodes}
    alike: dict[tuple[str, int | None], list[Node]] = {}
    for node in plan.nodes:
        alike.setdefault((node.cluster if by_cluster else "", gpus[node.host]), []).append(node)
    return tuple(_Component(tuple(nodes), key[1], _hosts(plan, nodes)) for key, nodes in alike.items())


def _hosts(plan: Plan, nodes: Sequence[Node]) -> tuple[str, ...]:
    names = {node.host: slurm_name(node) for node in nodes}
    return tuple(names[rank.host] for rank in plan.ranks if rank.host in names)


def _job(plan: Plan, component: _Component) -> dict[str, str]:
    lines = [
        *_head(plan, "job.sbatch", "Partition, time and account are yours to add."),
        f"#SBATCH {component.options}",
    ]
    lines += [*_directives(plan), _ENTER, f"exec srun --label --kill-on-bad-exit=1 {component.step('slurm.hostfile')}"]
    return {"job.sbatch": "\n".join(lines) + "\n", "slurm.hostfile": _hostfile(plan, component)}


def _heterogeneous_job(plan: Plan, components: Sequence[_Component]) -> dict[str, str]:
    asked = [f"#SBATCH --partition={each.nodes[0].cluster} {each.options}" for each in components]
    asked = [line for each in asked for line in ("#SBATCH hetjob", each)][1:]
    steps = [f"--het-group={index} {each.step(_name(index))}" for index, each in enumerate(components)]
    lines = [*_head(plan, "het.sbatch", "Clusters are partitions of their names. Time and account are yours to add.")]
    lines += [asked[0], *_directives(plan), *asked[1:], _ENTER]
    lines += ["exec srun --label --kill-on-bad-exit=1 \\", "    " + " : \\\n    ".join(steps)]
    hostfiles = {_name(index): _hostfile(plan, each) for index, each in enumerate(components)}
    return {"het.sbatch": "\n".join(lines) + "\n", **hostfiles}


def _name(component: int) -> str:
    return f"slurm-{component}.hostfile"


_ENTER = 'cd "${SLURM_SUBMIT_DIR:?start this with sbatch, in its folder}"'


def _head(plan: Plan, name: str, yours: str) -> list[str]:
    return ["#!/bin/sh", f"# plan {plan.digest()}", f"# Submit from this folder: `sbatch {name}`. {yours}"]


def _directives(plan: Plan) -> list[str]:
    lines = ["#SBATCH --job-name=holmes --export=NONE --output=%x-%j.out"]
    return [*lines, f"#SBATCH --signal=TERM@{SAVE_BEFORE_END_S}"] if plan.job.checkpoint is not None else lines


def _hostfile(plan: Plan, component: _Component) -> str:
    return "\n".join([f"# plan {plan.digest()}", *component.hosts]) + "\n"
