"""What holds for all tests, on however busy a machine and whoever starts them."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import planner.background

# A few examples after every change; `make test-slow` has more, and `make test-all` all. A test whose examples
# are expensive names a number of its own.
settings.register_profile("full", deadline=None, max_examples=150)
settings.register_profile("some", deadline=None, max_examples=25)
settings.register_profile("brief", deadline=None, max_examples=10)
settings.load_profile("brief")

# A shell's background job ignores Ctrl-C, and all that it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup; what tests start has the default again
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)

# Collection makes a million objects that last, and searching them for garbage takes a tenth of it.
gc.disable()

# pytest-xdist gives its workers the terminal's size; output that tests read has no terminal.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)

# Where no bytecode is kept, each process that tests start compiles the product, and each run all assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where torch keeps compiled layers, which would be a folder in the machine's temporary one that nobody removes.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "inductor"))
# A pool of processes that compile would start for each process, and each of them imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Tensors of tests are small: more threads would only wait for one another, and spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where the tokens of text are kept, else in the home folder of whoever runs the tests.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "cache")

# A plan's child has a copy of all that the tests of a process have made, and workers keep all cores busy anyway:
# without children the tests take an eighth less. tests/planner/test_background.py has them, as have commands.
planner.background.FORKS_SAFELY = False

# The layers that a run may be of alone, each with the words one of which is in every file with a test of it.
LAYERS: dict[str, tuple[str, ...]] = {layer: (f"mark.{layer}",) for layer in ("process", "torch", "slow", "cuda_build")}
LAYERS["slow"] += ("tests.seeds",)
LAYERS["(slow or hypothesis) and not exhaustive"] = (*LAYERS["slow"], "hypothesis")
LAYERS["cluster"] = ("mark.cluster", "NEEDS_BED")
LAYERS |= {f"{layer} and not exhaustive": LAYERS[layer] for layer in ("process", "torch", "cluster")}
OTHER_LAYER = re.compile(r"^pytestmark = .*(NEEDS_BED|mark\.(process|torch|cluster|slow|exhaustive|cuda_build))", re.M)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a test of the layer that runs: to import all costs most of a minute."""
    expression: str = config.option.markexpr
    if not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if expression in LAYERS:
        return None if any(word in text for word in LAYERS[expression]) else True
    is_default = expression in config.getini("addopts")
    return True if is_default and OTHER_LAYER.search(text) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests that are given more time than others, so that at the end no worker waits for one of them."""
    usual_s = float(config.getini("timeout"))

    def extra_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return max(0.0, float(mark.args[0]) - usual_s) if mark is not None else 0.0

    items.sort(key=extra_s, reverse=True)


def pytest_collection_finish() -> None:
    """Leave all that collection made out of later searches for garbage."""
    gc.freeze()
    gc.enable()
