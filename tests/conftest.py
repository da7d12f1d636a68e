"""What holds for all tests, on however busy a machine and whoever starts them."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# A shell's background job ignores Ctrl-C, and all that it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
