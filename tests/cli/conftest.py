"""What tests of the command line share: `holmes` by its entry point in this process, and hosts to run it on."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holmes_cli.app import main
from tests.planner.fleets import UNHURRIED
from tests.testbed.bed import Bed
from tests.testbed.rehearsal import Site, bed_site


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

    code: object
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Command]:
    """Runs `holmes` with the given arguments in `tmp_path`, 100 columns wide, as a user with a state folder of its own.

    It leaves no signal handler behind: `main` ignores Ctrl-C as its process ends, and this process goes on. In this
    process, which spares each test Python's start.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setattr("planner.advice.plan_with_advice.EFFORT", UNHURRIED)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what one test leaves, the next ones would never collect

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["holmes", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return Done(ended.value.code, written.out, written.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A bed for the tests of one module, with all that a user has to type `holmes` there."""
    with bed_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def bed(site: Site) -> Bed:
    """The hosts of `site`."""
    assert site.bed is not None
    return site.bed
