"""`make demo` takes the best place that the machine has for it, and says in a line what stands in for what."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import bed_needs, demo
from tests.testbed.rehearsal import Site

IP, SSHD = "ip", "sshd"
OLD = "the folder's last demo"


class Entered(Exception):
    """The process would have become another, `words`."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.words = words


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Where the demo ran, on a machine that has all but what `on_machine` says."""
    places: list[str] = []

    @contextlib.contextmanager
    def bed_site(folder: Path, with_sshd: bool) -> Iterator[Site]:
        places.append("sshd" if with_sshd else "own server")
        yield Site(folder, folder / "hosts.yaml")

    def run_demo(site: Site, networks_differ: bool) -> None:
        assert not (site.folder / OLD).exists()
        places.append("bed" if networks_differ else "local processes")

    def become(file: str, words: list[str], environment: dict[str, str]) -> None:  # noqa: ARG001
        raise Entered(words)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / OLD).touch()
    monkeypatch.setattr(demo, "bed_site", bed_site)
    monkeypatch.setattr(demo, "local_site", lambda folder: Site(folder, folder / "hosts.yaml"))
    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.setattr(sys, "argv", ["demo"])
    return places


def on_machine(monkeypatch: pytest.MonkeyPatch, *lacking: str, is_root: bool, namespaces: bool = True) -> None:
    """A machine without the tools `lacking`, and without user namespaces where it has no `namespaces`."""

    def refusal(rehearsal: str, in_user_namespace: bool = False) -> str | None:  # noqa: ARG001
        return None if namespaces or not in_user_namespace else "Operation not permitted"

    def which(tool: str, path: str) -> str | None:  # noqa: ARG001
        return None if tool in lacking else f"/bin/{tool}"

    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(bed_needs, "kernel_refusal", refusal)


@pytest.mark.parametrize(
    ("lacking", "is_root", "places", "said"),
    [
        ((), True, ["sshd", "bed"], "reached by SSH"),
        ((SSHD,), True, ["own server", "bed"], "No sshd here: each host runs the test bed's own SSH server."),
        ((IP,), True, ["local processes"], "No test bed here (missing: ip): four local processes stand in"),
        ((IP,), False, ["local processes"], "No test bed here (missing: root, ip): four local processes stand in"),
    ],
)
def test_the_hosts_are_the_best_that_can_be_had(
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lacking: tuple[str, ...],
    is_root: bool,
    places: list[str],
    said: str,
) -> None:
    on_machine(monkeypatch, *lacking, is_root=is_root)
    demo.main()
    assert ran == places
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("lacking", [(), (SSHD,)])
def test_without_root_all_happens_in_a_user_namespace(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lacking: tuple[str, ...]
) -> None:
    on_machine(monkeypatch, *lacking, is_root=False)
    with pytest.raises(Entered) as entered:
        demo.main()
    assert entered.value.words[: len(demo.AS_ROOT)] == list(demo.AS_ROOT)
    assert entered.value.words[-3:] == ["-m", "tests.testbed.demo", demo.INSIDE]
    assert "No root here: the hosts are in a user namespace" in capsys.readouterr().out

    on_machine(monkeypatch, *lacking, is_root=True)  # as it seems inside
    monkeypatch.setattr(sys, "argv", ["demo", demo.INSIDE])
    demo.main()
    assert ran == ["own server", "bed"]


def test_without_root_and_user_namespaces_local_processes_stand_in(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_machine(monkeypatch, is_root=False, namespaces=False)
    demo.main()
    assert ran == ["local processes"]
    assert "missing: network namespaces with bridges and tc tbf (Operation not permitted)" in capsys.readouterr().out
