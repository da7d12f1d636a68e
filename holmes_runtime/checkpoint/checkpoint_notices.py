"""Sentences on the weights of a run: printed into the log of rank 0, and left in a file for the controller."""

from __future__ import annotations

from pathlib import Path

from holmes_runtime.config.rank_metrics import CHECKPOINT_NOTICES_FILE, CheckpointNotice, CheckpointTopic
from holmes_runtime.config.strict_json import to_json


class CheckpointNotices:
    """The notices of `rank`, which says nothing unless it is rank 0; `folder` is that of its metrics."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def say(self, topic: CheckpointTopic, sentence: str, safe_steps: int | None = None) -> None:
        """Print and leave a sentence; `safe_steps` are those of a checkpoint that is whole."""
        if self._rank != 0:
            return
        print(sentence, flush=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / CHECKPOINT_NOTICES_FILE.format(rank=self._rank), "a", encoding="utf-8") as lines:
            lines.write(to_json(CheckpointNotice(self._rank, topic, sentence, safe_steps)) + "\n")
