"""Files that ranks leave in the node's folder, such as traces and memory reports, as messages for the controller."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import RankFileKind, rank_file

PART_BYTES = 48 * 1024


class LeftFiles:
    """Reads each file once, when it exists: files appear complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[Path] = set()

    def new(self) -> Iterator[RankFile]:
        """Yield, in order, the parts of the files that have arrived since the last call."""
        kinds: tuple[RankFileKind, ...] = get_args(RankFileKind)
        for kind in kinds:
            prefix, suffix = rank_file(kind, 0).split("0")
            for path in sorted(self._folder.glob(f"{prefix}*{suffix}")):
                rank = re.fullmatch(r"\d+", path.name.removeprefix(prefix).removesuffix(suffix))
                if rank is not None and path not in self._read:
                    self._read.add(path)
                    yield from _parts(path, int(rank[0]), kind)


def _parts(path: Path, rank: int, kind: RankFileKind) -> Iterator[RankFile]:
    with open(path, "rb") as file:
        offset = 0
        while part := file.read(PART_BYTES):
            yield RankFile(rank, kind, offset, base64.b64encode(part).decode())
            offset += len(part)
