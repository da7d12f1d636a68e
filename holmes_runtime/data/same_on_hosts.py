"""Comparison of what the hosts read, before the first step: the data, and the weights under adapters.

No checkpoint holds those weights, so each start reads them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.config.bounded_file import open_bounded
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.published_files.check_adapters import TENSORS_FILE, check_adapters
from holmes_runtime.node.published_files.check_published import check_published

BLOCK_BYTES = 2**20


class HostCorpus(NamedTuple):
    """The corpus that one host read."""

    host: str
    num_tokens: int
    digest: str


class HostWeights(NamedTuple):
    """The frozen weights that one host reads, and the adapters that it starts from ("none" if they are new)."""

    host: str
    identity: str
    adapters: str


def common_frozen_weights(config: RunConfig, host: str) -> str:
    """Return the identity of this run's frozen weights: a digest of their files, or the seed that draws them.

    All ranks of the default group call this.

    Raises:
        RuntimeError: The folder cannot be read or holds another model, or the weights or first adapters differ between
            hosts.
    """
    mine = HostWeights(host, _identity(config, host), _identity_of_adapters(config, host))
    everyone = all_gather_records(mine)
    check_equal(f"weights {config.weights}, which stay frozen, are", ((each.host, each.identity) for each in everyone))
    check_equal(f"adapters {config.first_adapters} are", ((each.host, each.adapters) for each in everyone))
    return mine.identity


def check_same_corpus(mine: HostCorpus) -> None:
    """Compare the corpora of all ranks in the default group. Raise RuntimeError naming the hosts that differ."""
    everyone = all_gather_records(mine)
    check_equal(
        "the data is", ((each.host, f"{each.num_tokens} tokens, digest {each.digest[:32]}") for each in everyone)
    )


def check_equal(what: str, by_host: Iterable[tuple[str, str]]) -> None:
    """Raise RuntimeError naming the hosts unless all pairs (host, identity) have the same identity."""
    hosts: dict[str, set[str]] = {}
    for host, identity in by_host:
        hosts.setdefault(identity, set()).add(host)
    if len(hosts) > 1:
        parts = [f"{', '.join(sorted(names))}: {identity}" for identity, names in hosts.items()]
        raise RuntimeError(f"{what} not the same on every host: {'; '.join(parts)}")


def _identity(config: RunConfig, host: str) -> str:
    if config.weights is None:
        return f"drawn by seed {config.seed}"
    try:
        return identity_of(Path(config.weights), config.model)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"host {host}: weights {config.weights}: {error}") from None


def _identity_of_adapters(config: RunConfig, host: str) -> str:
    if config.lora is None or config.first_adapters is None:
        return "none"
    try:
        check_adapters(Path(config.first_adapters), config.model, config.lora)
        with open_bounded(Path(config.first_adapters) / TENSORS_FILE) as file:
            hashed = hashlib.blake2b(digest_size=16)
            while block := file.read(BLOCK_BYTES):
                hashed.update(block)
        return f"digest {hashed.hexdigest()}"
    except (OSError, ValueError) as error:
        raise RuntimeError(f"host {host}: adapters {config.first_adapters}: {error}") from None


def identity_of(folder: Path, shape: ModelShape) -> str:
    """Return the identity of the published weights in `folder`. Raises ValueError if they are not of `shape`."""
    files = sorted({tensor.file for tensor in check_published(folder, shape).values()})
    return f"digest {digest_of([FileBytes(file) for file in files])[:32]}"
