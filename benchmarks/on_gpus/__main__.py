"""`python -m benchmarks.on_gpus`: look for missing packages, and only then import what needs them."""

from __future__ import annotations

import sys

from benchmarks.on_gpus.packages import refuse_missing

if __name__ == "__main__":
    refuse_missing()
    from benchmarks.on_gpus.run_all import main

    sys.exit(main())
