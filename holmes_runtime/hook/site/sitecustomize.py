"""Activation of the hook when Python starts, before the trainer's script.

The folder of this file is first in a rank's PYTHONPATH. The file then runs the `sitecustomize` that it shadows, which
is all it does in a Python process without a rank.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _activate() -> None:
    if "HOLMES_TRAINER" not in os.environ or "RANK" not in os.environ:
        return
    sys.path.append(str(HERE.parents[2]))  # last, so that it shadows none of the user's modules
    try:
        importlib.import_module("holmes_runtime.hook.watch_import").watch_import()  # this file is in no package
    except Exception as error:  # Python would print it and continue without the hook
        print(f"holmes: the hook cannot be activated: {error!r}", file=sys.stderr)
        raise SystemExit(1) from error


def _run_shadowed() -> None:
    """Run the next `sitecustomize` on the path, from Debian, conda or the user."""
    others = [folder for folder in sys.path if Path(folder or os.curdir).resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_activate()
_run_shadowed()
