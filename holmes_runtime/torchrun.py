"""torchrun, started by the node agent, with its failed ranks and their exit codes in a file.

The arguments are torchrun's. Only torchrun's exception has a failed rank's exit code, so torchrun is called here and
not run as a program. The rendezvous is torch's static one, except that its store listens on a socket that the agent
opened. Others reach that socket only through the agents' gates.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import parse_args, run

from holmes_runtime.config.messages import RankFailed
from holmes_runtime.config.node_config import HOST_VARIABLE, TRAINER_VARIABLE
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.config.trainer_config import read_trainer_config

FAILURES_VARIABLE = "HOLMES_FAILURES_FILE"
LISTENER_VARIABLE = "HOLMES_LISTENER"
BACKEND = "holmes"
RENDEZVOUS_TIMEOUT_S = 300


class PlannedRendezvous(StaticTCPRendezvous):
    """A rendezvous with planned node ranks. Node 0 serves the store on the listening socket that the agent opened."""

    def get_backend(self) -> str:
        """Return the registered name."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have arrived, and return the store and this node's place."""
        listener = os.environ.get(LISTENER_VARIABLE)
        if self._store is None:
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                self.rank == 0,
                self.timeout,
                multi_tenant=True,
                master_listen_fd=int(listener) if listener else None,
            )
        store = PrefixStore(self.run_id, self._store)
        return RendezvousInfo(
            store, self.rank, self.world_size, RendezvousStoreInfo(self.master_addr, self.master_port)
        )


def _planned_rendezvous(parameters: RendezvousParameters) -> PlannedRendezvous:
    address, port = parse_rendezvous_endpoint(parameters.endpoint, -1)
    rank = int(parameters.config["rank"])
    return PlannedRendezvous(address, port, rank, parameters.max_nodes, parameters.run_id, RENDEZVOUS_TIMEOUT_S)


def main() -> int:
    """Run torchrun. If ranks fail, write them, one per line, to the file named by HOLMES_FAILURES_FILE."""
    rendezvous_handler_registry.register(BACKEND, _planned_rendezvous)
    try:
        run(parse_args(sys.argv[1:]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        lines = [to_json(_failure(rank, failure)) + "\n" for rank, failure in error.failures.items()]
        Path(os.environ[FAILURES_VARIABLE]).write_text("".join(lines), encoding="utf-8")
        return 1
    return 0


def _failure(rank: int, failure: Any) -> RankFailed:
    """Return the record of torch's ProcessFailure, whose message has a traceback if the rank could write one.

    torchrun numbers ranks host by host. For a trainer's command the record has the plan's number.
    """
    message = failure.message if isinstance(failure.message, str) else _with_cause(failure.message)
    trainer = Path(os.environ.get(TRAINER_VARIABLE, ""))
    if trainer.is_file():
        rank = read_trainer_config(trainer).rank_at(os.environ[HOST_VARIABLE], failure.local_rank)
    return RankFailed(rank, failure.exitcode, message, float(failure.timestamp))


def _with_cause(report: dict[str, Any]) -> str:
    """Return the message, preceded by its cause's. torch's pipelining wraps the loss of a peer in its own errors."""
    traceback = report.get("extraInfo", {}).get("py_callstack", "")
    before, chained, _ = traceback.partition("\n\nThe above exception was the direct cause")
    text = str(report["message"])
    return f"{before.strip().splitlines()[-1]}; then {text}" if chained else text


if __name__ == "__main__":
    sys.exit(main())
