"""A headless browser, where this machine has one, that shows pages as a user would see them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="no headless browser here (Debian: chromium)")


def dumped(page: Path) -> str:
    """The page's elements as the browser has read them."""
    return _browse(page, "--dump-dom")


def screenshot(page: Path) -> Path:
    """A picture of the page, beside it."""
    shot = page.with_suffix(".png")
    _browse(page, f"--screenshot={shot}")
    return shot


def _browse(page: Path, what: str) -> str:
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.with_suffix('.profile')}"]
    command = [BROWSER, *options, what, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
