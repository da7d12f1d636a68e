"""The error of a rank in the file that torchrun reads, which is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torch's variable


class WholeErrorFile(ErrorHandler):
    """torch's handler, which may be killed as it writes: torchrun then fails on half a file and names no rank."""

    def record_exception(self, e: BaseException) -> None:
        """Write the error to another file, then give that the name."""
        path = os.environ.get(ERROR_FILE)
        if path is None:
            super().record_exception(e)
            return
        os.environ[ERROR_FILE] = f"{path}.partial"
        super().record_exception(e)
        os.environ[ERROR_FILE] = path
        Path(f"{path}.partial").replace(path)
