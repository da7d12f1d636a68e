"""The network that the members of a process group share. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holmes_runtime.config.trainer_config import TrainerConfig, TrainerNetwork

MAX_NAMED = 8  # ranks of a group named in an error


class GroupBinding(NamedTuple):
    """The network of a group that is being made, and this rank's interface on it. Both are None inside a host."""

    network: TrainerNetwork | None
    interface: str | None


def network_of(config: TrainerConfig, ranks: Sequence[int]) -> TrainerNetwork | None:
    """Return the first network on which all of `ranks` have an interface; None if they are on one host.

    Raises:
        RuntimeError: They share no network, or a rank is not in the plan. The message names ranks and hosts.
    """
    unknown = [rank for rank in ranks if not 0 <= rank < len(config.ranks)]
    if unknown:
        raise RuntimeError(
            f"holmes: a process group names rank {unknown[0]}, but the plan has {len(config.ranks)} ranks"
        )
    members = [config.ranks[rank] for rank in ranks]
    if len({member.host for member in members}) == 1:
        return None
    for network in config.networks:
        if all(network.name in member.interfaces for member in members):
            return network
    named = ", ".join(
        f"rank {rank} ({member.host}) on {' and '.join(member.interfaces) or 'none'}"
        for rank, member in list(zip(ranks, members, strict=True))[:MAX_NAMED]
    )
    raise RuntimeError(
        f"holmes: the {len(ranks)} members of a process group share no network and would hang: {named}; "
        "probe again and check the networks of these hosts, or leave one of them out"
    )
