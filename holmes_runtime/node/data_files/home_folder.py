"""The run configuration on one host, where `~` in a path is the user's home folder on that host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holmes_runtime.config.run_config import RunConfig


def read_run_config(text: str) -> RunConfig:
    """Return the configuration in `text`, with this host's home folder in paths. Raises ValueError as `from_json`."""
    config = RunConfig.from_json(text)
    data, checkpoint, lora = config.data, config.checkpoint, config.lora
    path = (
        _at_home(data.path)
        if isinstance(data.path, str)
        else tuple(replace(source, path=_at_home(source.path)) for source in data.path)
    )
    return replace(
        config,
        lora=None if lora is None else replace(lora, adapters=lora.adapters and _at_home(lora.adapters)),
        weights=config.weights and _at_home(config.weights),
        data=replace(data, path=path, tokenizer=data.tokenizer and _at_home(data.tokenizer)),
        checkpoint=None if checkpoint is None else replace(checkpoint, path=_at_home(checkpoint.path)),
    )


def _at_home(path: str) -> str:
    return str(Path(path).expanduser())
