"""The file in which torchrun reads a rank's error, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torch's variable


class WholeErrorFile(ErrorHandler):
    """A handler that writes the file whole. torchrun fails on a partial file of a killed rank, and names no rank."""

    def record_exception(self, e: BaseException) -> None:
        """Write the error to another file, and then rename that."""
        path = os.environ.get(ERROR_FILE)
        if path is None:
            super().record_exception(e)
            return
        os.environ[ERROR_FILE] = f"{path}.partial"
        super().record_exception(e)
        os.environ[ERROR_FILE] = path
        Path(f"{path}.partial").replace(path)
