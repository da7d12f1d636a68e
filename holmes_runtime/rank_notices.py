"""Sentences about the data and the weights of a run, which rank 0 prints and writes for the controller."""

from __future__ import annotations

from pathlib import Path

from holmes_runtime.config.rank_metrics import NOTICES_FILE, NoticeTopic, RankNotice
from holmes_runtime.config.strict_json import to_json


class RankNotices:
    """The notices of `rank`, in the `folder` of its metrics. Only rank 0 gives any."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def say(self, topic: NoticeTopic, sentence: str, safe_steps: int | None = None, bad_lines_skipped: int = 0) -> None:
        """Print `sentence` and write it as a `RankNotice` with these fields."""
        if self._rank != 0:
            return
        print(sentence, flush=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / NOTICES_FILE.format(rank=self._rank), "a", encoding="utf-8") as lines:
            lines.write(to_json(RankNotice(self._rank, topic, sentence, safe_steps, bad_lines_skipped)) + "\n")
