"""The identity of the weights that adapters are trained on, which no checkpoint holds: the same on all hosts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.same_corpus import digest_of
from holmes_runtime.node.data_files.stored_bytes import FileBytes
from holmes_runtime.node.published_files.check_published import check_published


class HostWeights(NamedTuple):
    """The frozen weights that one host reads."""

    host: str
    identity: str


def common_frozen_weights(config: RunConfig, host: str) -> str:
    """Return the identity of the frozen weights of this run: a digest of their files, or the seed they are drawn by.

    Called by all ranks of the default group.

    Raises:
        RuntimeError: The folder cannot be read or holds another model, or hosts have other weights than others.
    """
    mine = HostWeights(host, _identity(config, host))
    hosts: dict[str, set[str]] = {}
    for each in all_gather_records(mine):
        hosts.setdefault(each.identity, set()).add(each.host)
    if len(hosts) > 1:
        parts = [f"{', '.join(sorted(names))}: {identity}" for identity, names in hosts.items()]
        raise RuntimeError(
            f"weights {config.weights}, which stay frozen, are not the same on every host: {'; '.join(parts)}"
        )
    return mine.identity


def _identity(config: RunConfig, host: str) -> str:
    if config.weights is None:
        return f"drawn by seed {config.seed}"
    try:
        return identity_of(Path(config.weights), config.model)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"host {host}: weights {config.weights}: {error}") from None


def identity_of(folder: Path, shape: ModelShape) -> str:
    """Return the identity of the published weights in `folder`. Raise ValueError if they are not of `shape`."""
    files = sorted({tensor.file for tensor in check_published(folder, shape).values()})
    return f"digest {digest_of([FileBytes(file) for file in files])[:32]}"
