"""torchrun with its verdict in a file: which rank failed first, with which exit code. Started by the node agent.

The arguments are torchrun's own. A failed rank's exit code is part of torchrun's exception and of nothing else that
leaves the process, so torchrun is called here instead of being run by name.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

VERDICT_VARIABLE = "HOLMES_VERDICT_FILE"


def main() -> int:
    """Run torchrun; on failure write the failed ranks to the file named by HOLMES_VERDICT_FILE."""
    try:
        run(parse_args(sys.argv[1:]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        verdict = [_failure(rank, failure) for rank, failure in error.failures.items()]
        Path(os.environ[VERDICT_VARIABLE]).write_text(json.dumps(verdict), encoding="utf-8")
        return 1
    return 0


def _failure(rank: int, failure: Any) -> dict[str, object]:
    """`failure` is torch's ProcessFailure; its message holds a traceback when the rank could write one."""
    message = failure.message if isinstance(failure.message, str) else failure.message["message"]
    return {
        "rank": rank,
        "local_rank": failure.local_rank,
        "exit_code": failure.exitcode,
        "message": message,
        "time_s": float(failure.timestamp),
    }


if __name__ == "__main__":
    sys.exit(main())
