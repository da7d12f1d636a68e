"""The site of the documents: every page opens in a browser, and search finds the page that answers a question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests import doc_commands
from tests.cli.browser import NEEDS_BROWSER, browsing

ROOT = Path(__file__).parent.parent
QUESTIONS = {
    "install without network": "install",
    "Megatron-LM command before and after": "megatron",
    "stop a run": "questions",
    "resume from a checkpoint": "questions",
    "which file decides the NIC": "questions",
    "host key refused": "questions",
    "logs of a rank": "questions",
    "LoRA adapters": "runtime",
    "islands DiLoCo": "planning",
    "Slurm job": "integrations",
    "GPUDirect": "doctor",
    "exit codes": "commands",
    "fine-tune": "data",
}
# Opens each page in a frame as wide as a telephone, as the front page's links lead there, then asks each question.
_WALK = """<meta charset="utf-8"><iframe width="400" height="800"></iframe><script>
const frame = document.querySelector("iframe"), opened = {}, found = {}, questions = QUESTIONS;
const open = path => new Promise(done => { frame.onload = () => done(frame.contentDocument); frame.src = path; });
const tick = () => new Promise(done => setTimeout(done, 100));
const links = page => [...page.querySelectorAll(".md-nav--primary a.md-nav__link, article a")]
  .map(link => link.href.split("#")[0]).filter(link => link.startsWith(location.origin) && link.endsWith(".html"));

async function walk() {
  const left = [location.origin + "/index.html"];
  while (left.length) {
    const path = left.pop();
    if (path in opened) continue;
    const page = await open(path);
    const broken = [...page.images].filter(image => !image.naturalWidth).map(image => image.src);
    const wide = page.documentElement.scrollWidth > frame.clientWidth;
    opened[path] = {heading: page.querySelector("article h1")?.innerText ?? "", broken, wide};
    left.push(...links(page));
  }
  for (const question of questions) {
    const page = await open("/index.html?q=" + encodeURIComponent(question));
    let first = null;
    while (!(first = page.querySelector("a.md-search-result__link"))) await tick();
    found[question] = first.href.split("#")[0].split("?")[0];
  }
  await fetch("/walked", {method: "POST", body: JSON.stringify({opened, found})});
}
walk();
</script>"""


def test_the_page_of_commands_is_what_they_say_of_themselves() -> None:
    assert doc_commands.PAGE.read_text(encoding="utf-8") == doc_commands.page(), (
        "write it: python -m tests.doc_commands"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by `make docs`, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, check=False, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


class _Site(SimpleHTTPRequestHandler):
    """Serves the site's files and the page that walks through them, and takes what it has seen."""

    def __init__(self, walked: Queue[dict[str, Any]], *arguments: Any, **options: Any) -> None:
        self._walked = walked
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        self._walked.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def walked(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Open every page and ask every question in a browser, and yield what it saw."""
    (site / "walk.html").write_text(_WALK.replace("QUESTIONS", json.dumps(list(QUESTIONS))), encoding="utf-8")
    seen: Queue[dict[str, Any]] = Queue()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Site, seen, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/walk.html"
        with browsing(address, tmp_path_factory.mktemp("browser")):
            yield seen.get(timeout=1500)
        server.shutdown()


@pytest.mark.process
@NEEDS_BROWSER
def test_every_page_opens_from_the_front_page_and_fits_a_telephone(walked: dict[str, Any]) -> None:
    opened = {path.rpartition("/")[2]: seen for path, seen in walked["opened"].items()}
    assert {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} <= set(opened)
    assert {path: seen for path, seen in opened.items() if not seen["heading"] or seen["broken"] or seen["wide"]} == {}


@pytest.mark.process
@NEEDS_BROWSER
def test_search_finds_the_page_that_answers_a_question_first(walked: dict[str, Any]) -> None:
    found = {question: Path(path).stem for question, path in walked["found"].items()}
    assert found == QUESTIONS
