"""A headless browser, where this machine has one, that shows pages as a user would see them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


_HIDDEN = """<script>
document.querySelectorAll("details").forEach(part => part.open = true);
const wide = [...document.body.querySelectorAll("*")].filter(part => {
  const box = part.getBoundingClientRect();
  return box.width && !part.closest(".scroll") && (box.right > innerWidth + 1 || box.left < -1);
});
const words = wide.slice(0, 5).map(part => part.outerHTML.slice(0, 80)).join("; ");
document.documentElement.innerHTML = "HIDDEN(" + words + ")";
</script>"""


def hidden_parts(page: Path, width: int) -> str:
    """What reaches over the edges of a window that wide (pixels), with all details open; nothing if all is seen."""
    copy = page.with_name(f"{page.stem}-{width}.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{_HIDDEN}</body>"), encoding="utf-8")
    shown = _browse(copy, "--dump-dom", f"--window-size={width},900")
    return shown.partition("HIDDEN(")[2].rpartition(")")[0]


def _browse(page: Path, *what: str) -> str:
    command = _command(page.with_suffix(".profile"), *what, page.as_uri())
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def _command(profile: Path, *what: str) -> list[str]:
    assert BROWSER is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
    return [BROWSER, *options, f"--user-data-dir={profile}", *what]


@contextmanager
def browsing(address: str, profile: Path) -> Iterator[None]:
    """Keep a page open in a browser until the body ends; its scripts run in real time."""
    command = _command(profile, "--remote-debugging-port=0", address)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
