"""What holds for all tests, on however busy a machine and whoever starts them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# A shell's background job ignores Ctrl-C, and all that it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where torch keeps compiled layers, which would be a folder in the machine's temporary one that nobody removes.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "inductor"))
# Where the tokens of text are kept, else in the home folder of whoever runs the tests.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "cache")
