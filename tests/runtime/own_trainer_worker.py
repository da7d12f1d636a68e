"""`python -m tests.runtime.own_trainer_worker FOLDER`: one script of plain torch as one run, and as two islands.

Torch is imported once and ranks are forked from it. FOLDER/results.json has for each scenario and island how ranks
ended, what they said, their losses, exchanges, and the weights of rank 0 at the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.islands.rendezvous_messages import MEETING
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.trainer_config import TrainerConfig, TrainerRank
from holmes_runtime.outer.island import Island
from tests.free_ports import free_port

from .launched_runs import ONE_ISLAND
from .meeting_place import MeetingPlace

LIMIT_S = 300.0  # of a scenario, however busy the machine
STEPS, STOP_AT = 8, 5
AVERAGING: dict[str, Any] = {"inner_steps": 1, "outer_rate": 1.0, "momentum": 0.0}
STREAMING: dict[str, Any] = {
    "inner_steps": 4, "fragments": 2, "delay_steps": 1, "codec": "int8", "outer_rate": 0.7, "momentum": 0.9,
}  # fmt: skip

MISTAKES_OF_ONE = (
    "no parameters", "no names", "one name", "steps first", "begins late", "begins twice", "loads late", "steps on",
    "not finite", "begins early",
)  # fmt: skip


class Script(NamedTuple):
    """The arguments of the script; `mesh` is replicas x shards, and tensor shards if it has a third number."""

    mesh: tuple[int, ...] = (1, 2)
    steps: int = STEPS
    planned_steps: int = STEPS
    optimizer: str = "sgd"
    exact: bool = False  # no sum of this training is ever rounded
    same_samples: bool = False  # on every island
    differs: bool = False  # ranks do not hold the same where they should
    stop_at: int = 0
    resume: bool = False
    mistake: str = ""


def build(script: Script) -> nn.Module:
    torch.manual_seed(0)
    if script.exact:
        model: nn.Module = nn.Sequential(nn.Linear(8, 4, bias=False))
        for each in model.parameters():
            each.data.round_()
    else:
        model = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4))
    if script.mesh == (1, 1):
        if script.differs:
            nn.init.constant_(next(model.parameters()), dist.get_rank())
        return model
    names = ("replicate", "shard", "tensor")[: len(script.mesh)]
    mesh = init_device_mesh("cpu", script.mesh, mesh_dim_names=names)
    data: DeviceMesh = mesh
    if len(script.mesh) == 3:
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        data = mesh["replicate", "shard"]
    for layer in model.children():
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    return model


def batch(script: Script, step: int, island: Island, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the samples of this rank: of one run's global batch each rank of all islands takes its own."""
    rank = dist.get_rank() + (0 if script.same_samples else island.number * ranks)
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if script.exact:
        inputs = torch.randint(-1, 2, (1, 8), generator=generator).float()
        return inputs, torch.randint(-2, 3, (1, 4), generator=generator).float()
    return torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)


def run_script(script: Script, folder: Path) -> None:
    dist.init_process_group("gloo")
    model = build(script)
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=0.01)
        if script.optimizer == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5 if script.exact else 0.0)
    )
    trained = list(model.named_parameters())
    if script.mistake in MISTAKEN_PARAMETERS:
        trained = MISTAKEN_PARAMETERS[script.mistake](trained)
    island = Island(trained, script.steps)
    make_mistake(script.mistake, island, model)
    saved, step = folder / f"saved-{island.number}-{dist.get_rank()}.pt", 0
    if script.resume:
        state = torch.load(saved, weights_only=True)
        for name, each in model.named_parameters():
            local_of(each).copy_(state["weights"][name])
        island.load_state_dict(state["island"])
        step = state["step"]
    step, losses = island.begin(STEPS - 3 if script.mistake == "begins with weights" else step), []
    if script.mistake == "begins twice":
        island.begin(step)
    if script.mistake == "loads late":
        island.load_state_dict(island.state_dict())
    while step < script.steps:
        inputs, wanted = batch(script, step, island, dist.get_world_size())
        loss = (model(inputs) - wanted).square().sum() / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        step = island.step()
        if step == script.stop_at:
            weights = {name: local_of(each).clone() for name, each in model.named_parameters()}
            torch.save({"weights": weights, "island": island.state_dict(), "step": step}, saved)
            break
    if script.mistake == "steps on":
        island.step()
    whole = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in model.named_parameters()}
    result = {"losses": losses, "weights": {name: each.tolist() for name, each in whole.items()}}
    (folder / f"result-{island.number}-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()


Named = list[tuple[str, nn.Parameter]]
MISTAKEN_PARAMETERS: dict[str, Callable[[Named], Any]] = {
    "no parameters": lambda _named: [],
    "no names": lambda named: [each for _, each in named],
    "one name": lambda named: [("weight", each) for _, each in named],
}


def make_mistake(mistake: str, island: Island, model: nn.Module) -> None:
    """Make a mistake between the creation of the island and `begin`."""
    if mistake == "steps first":
        island.step()
    elif mistake == "begins late":
        island.begin(STEPS + 1)
    elif mistake == "begins early":
        island.load_state_dict({**island.state_dict(), "steps": STOP_AT})
    elif mistake == "not finite":
        nn.init.constant_(local_of(next(model.parameters())), float("nan"))


@torch.no_grad()
def local_of(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


def enter(script: Script, folder: Path, name: str, environment: dict[str, str]) -> None:
    """One rank; what it says goes to a file."""
    os.environ.update(environment)
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)
        try:
            run_script(script, folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


def hold(folder: Path, scripts: list[Script], outer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Run the script as one, or each as an island of all."""
    folder.mkdir(exist_ok=True)
    place, fork, islands = MeetingPlace(len(scripts)), multiprocessing.get_context("fork"), []
    for number, script in enumerate(scripts):
        ranks = max(2 if script.differs else 1, torch.Size(script.mesh).numel())
        environment = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
            "GLOO_SOCKET_IFNAME": "lo", "HOLMES_METRICS_DIR": str(folder / f"metrics-{number}"),
        }  # fmt: skip
        (folder / f"metrics-{number}").mkdir(exist_ok=True)
        if outer is not None:
            sync = replace(ONE_ISLAND, **{"grace_s": 120.0, **outer}, island=number, num_islands=len(scripts))
            training = IslandTraining(
                replace(sync, interfaces=("lo",) * ranks), script.planned_steps, 32, ranks, LIMIT_S
            )
            places = tuple(TrainerRank("here", rank, {}) for rank in range(ranks))
            file = folder / f"trainer-{number}.json"
            file.write_text(TrainerConfig(("python",), "~/", (), places, training).to_json())
            environment |= {TRAINER_VARIABLE: str(file), MEETING: place.addresses[number]}
        names = [f"{number}-{rank}" for rank in range(ranks)]
        started = [
            fork.Process(target=enter, args=(script, folder, name, {**environment, "RANK": str(rank)}))
            for rank, name in enumerate(names)
        ]
        for process in started:
            process.start()
        islands.append((names, started))
    return [_ended(folder, number, *each) for number, each in enumerate(islands)]


def _ended(folder: Path, number: int, names: list[str], started: list[Any]) -> dict[str, Any]:
    for process in started:
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
    result, files = folder / f"result-{number}-0.json", (folder / f"metrics-{number}").iterdir()
    lines = [line for file in sorted(files) for line in file.read_text().splitlines()]
    return {
        "exit_codes": [process.exitcode for process in started],
        "said": "".join((folder / f"{name}.log").read_text() for name in names),
        "outer": [json.loads(line)["outer"] for line in lines],
        **(json.loads(result.read_text()) if result.exists() else {}),
    }


def main(folder: Path) -> None:
    exact, real = Script(exact=True, steps=4, planned_steps=4), Script()
    whole = Script(mesh=(1, 1))
    apart = Script(same_samples=True, optimizer="adamw")
    scenarios: dict[str, tuple[list[Script], dict[str, Any] | None]] = {
        "sums as one": ([exact._replace(mesh=(2, 2))], None),
        "sums apart": ([exact, exact], AVERAGING),
        "rounded as one": ([real._replace(mesh=(2, 2))], None),
        "rounded apart": ([real, real], AVERAGING),
        "same samples as one": ([apart], None),
        "same samples apart": ([apart, apart], AVERAGING),
        "uninterrupted": ([real] * 2, STREAMING),
        "stopped": ([real._replace(stop_at=STOP_AT)] * 2, STREAMING),
        "resumed": ([real._replace(resume=True)] * 2, STREAMING),
        "weights alone": ([whole._replace(mistake="begins with weights")] * 2, STREAMING),
        "other layouts": ([real._replace(mesh=(1, 2, 2)), real._replace(mesh=(2, 1))], STREAMING),
        "copies differ": ([real._replace(mesh=(1, 1), differs=True)], STREAMING),
        "other steps": ([real._replace(steps=STEPS + 1)], STREAMING),
        **{name: ([whole._replace(mistake=name)], STREAMING) for name in MISTAKES_OF_ONE},
    }
    results = {}
    for name, (scripts, outer) in scenarios.items():
        of = folder / ("saved" if name in ("stopped", "resumed") else name.replace(" ", "-"))
        results[name] = hold(of, scripts, outer)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
