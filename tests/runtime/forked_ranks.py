"""Runs whose ranks are forked from a process that has imported torch and has used none of it.

Each rank runs `train`, as under torchrun, and is spared torch's import, two seconds of a processor.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import holmes_runtime.checkpoint.checkpoints  # noqa: F401  so that not each rank that saves imports it
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.train import Launched, train
from tests.free_ports import free_port

from .launched_runs import FinishedRun, read_metrics

NO_VARIABLES: Mapping[str, str] = {}


def with_torch() -> ForkServerContext:
    """Processes with torch imported, for a test process, which must not be forked: its threads may hold torch's locks.

    They have the environment that the test process had when it started the first.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def launch_forked(config: RunConfig, folder: Path, variables: Mapping[str, str] = NO_VARIABLES) -> FinishedRun:
    """Train `config` as `launch` does, without torchrun; stdout is also what was written to stderr."""
    with ProcessPoolExecutor(1, with_torch()) as pool:
        done = pool.submit(_run_with, dict(variables), config, folder).result()
    code = max(abs(code or 0) for code in done["exit_codes"])
    return FinishedRun(code, done["said"], done["said"], read_metrics(folder / "metrics"))


def _run_with(variables: Mapping[str, str], config: RunConfig, folder: Path) -> dict[str, Any]:
    os.environ.update(variables)
    return run(config, folder)


def enter(
    config: RunConfig,
    rank: int,
    port: int,
    folder: Path,
    before: Callable[[], None],
    own: Callable[[RunConfig, int], RunConfig] | None,
) -> None:
    """One rank: what torchrun would have set, then training; what it says goes to a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(config.world_size))
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    with open(folder / f"rank{rank}.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            before()
            gc.freeze()  # as `lean_start` does
            mine = config if own is None else own(config, rank)
            train(mine, Launched(rank, rank, config.world_size, folder / "metrics"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


def run(
    config: RunConfig,
    folder: Path,
    before: Callable[[], None] = lambda: None,
    during: Callable[[list[int]], None] = lambda _: None,
    own: Callable[[RunConfig, int], RunConfig] | None = None,
) -> dict[str, Any]:
    """Trains `config`; `before` is called in every rank, `during` here with the ranks' process ids.

    `own` makes of it the configuration that is a rank's own, where these differ.
    """
    folder.mkdir(parents=True)
    fork, port = multiprocessing.get_context("fork"), free_port()
    ranks = [
        fork.Process(target=enter, args=(config, rank, port, folder, before, own)) for rank in range(config.world_size)
    ]
    for process in ranks:
        process.start()
    during([process.pid or 0 for process in ranks])
    for process in ranks:
        process.join(300)
        if process.exitcode is None:
            process.kill()
    metrics = read_metrics(folder / "metrics")
    lines = next((lines for lines in metrics.values() if lines and lines[0]["loss"] is not None), [])
    return {
        "exit_codes": [process.exitcode for process in ranks],
        "steps": [line["step"] for line in lines],
        "losses": [line["loss"] for line in lines],
        "eval_losses": [line["eval_loss"] for line in lines],
        "said": "".join((folder / f"rank{rank}.log").read_text() for rank in range(config.world_size)),
    }
