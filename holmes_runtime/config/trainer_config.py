"""The configuration of ranks that run the user's own trainer: its command, and the networks of its groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.checks import check
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.rank_grid import NetName
from holmes_runtime.config.strict_json import encode, parse

HOOK_FOLDER = "holmes_runtime/hook/site"  # first in PYTHONPATH; Python runs `sitecustomize` from it
SHARED = "shared"  # the network that joins all hosts of a job


class TrainerNetwork(NamedTuple):
    """A network that hosts of the job share. `net_name` is NCCL's name for its transport; None lets NCCL choose."""

    name: str
    net_name: NetName | None


class TrainerRank(NamedTuple):
    """The place of one rank, and its network interface on each of its networks, by network name."""

    host: str
    local_rank: int
    interfaces: dict[str, str]


class TrainerConfig(NamedTuple):
    """The command of every rank, as words, its working folder, and the ranks in global order.

    `networks` are in order of preference: a group of ranks on several hosts uses the first one on which all have an
    interface. `island` is the training as one of several islands, if it is one.
    """

    command: tuple[str, ...]
    folder: str
    networks: tuple[TrainerNetwork, ...]
    ranks: tuple[TrainerRank, ...]
    island: IslandTraining | None = None

    def rank_at(self, host: str, local_rank: int) -> int:
        """Return the global rank. Raises KeyError if the job has no such rank."""
        for number, rank in enumerate(self.ranks):
            if (rank.host, rank.local_rank) == (host, local_rank):
                return number
        raise KeyError(f"host {host} has no local rank {local_rank}")

    def to_json(self) -> str:
        """Return the text that `from_json` parses."""
        return json.dumps(encode(type(self), self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainerConfig:
        """Parse the configuration. Raises ValueError for a missing or unknown key and for an unknown network."""
        config = parse(cls, text)
        known = {network.name for network in config.networks}
        for number, rank in enumerate(config.ranks):
            unknown = sorted(set(rank.interfaces) - known)
            check(f"ranks[{number}].interfaces", unknown, "must be on networks of the job", not unknown)
        return config


def read_trainer_config(path: Path) -> TrainerConfig:
    """Return the configuration in a file. Raises OSError, or ValueError if the file is damaged."""
    return TrainerConfig.from_json(path.read_text(encoding="utf-8"))
