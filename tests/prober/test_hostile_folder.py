"""No Python that Holmes starts to ask something imports from the folder that `holmes` is started in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holmes_core.records.access import Access
from holmes_core.records.inventory import Host
from holmes_core.remote.local_shell import LocalConnection
from prober.asking.commands import Command, cut, script
from prober.facts.machine.software import read_software, software_command
from prober.facts.netdev.interface_addresses import addresses_command
from prober.links.link_session import LinkSession
from tests.seeds import few_of

TOKEN = "@@hostile"
MODULES = ("json", "torch", "re", "pathlib", "platform", "fcntl", "socket", "struct", "sitecustomize", "usercustomize")
LIMIT_S = 120.0


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is made where anything is imported from the folder that this process now works in."""
    folder, made = tmp_path / "somebody's", tmp_path / "CANARY"
    (folder / "typing").mkdir(parents=True)
    text = f"open({str(made)!r}, 'w').write(__name__)\nraise ImportError(__name__)\n"
    for name in ("typing/__init__", *MODULES):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    return made


def answer(*commands: Command) -> str:
    """What this machine says to the commands."""
    return LocalConnection("a1").run("sh -s", script(commands, TOKEN).encode(), LIMIT_S).stdout.decode()


@pytest.mark.parametrize("activate", [None, "true"], ids=["plain", "activated"])
@pytest.mark.parametrize("python_path", few_of(1, [None, "", ".", ":/nowhere"]))
def test_versions_are_asked_without_the_folder(
    canary: Path, monkeypatch: pytest.MonkeyPatch, activate: str | None, python_path: str | None
) -> None:
    if python_path is not None:
        monkeypatch.setenv("PYTHONPATH", python_path)
    access = Access(transport="local", python=sys.executable, activate=activate)
    (asked,) = cut(answer(software_command(access)), TOKEN)
    assert asked.asks_python
    assert read_software([asked]).python == ".".join(map(str, sys.version_info[:3]))
    assert not canary.exists()


def test_addresses_are_asked_without_the_folder(canary: Path) -> None:
    access = Access(transport="local", python=sys.executable)
    _, asked = cut(answer(Command("false"), addresses_command(access)), TOKEN)
    assert (asked.exit_code, asked.text[:1]) == (0, "[")
    assert not canary.exists()


def test_link_test_runs_without_the_folder(canary: Path) -> None:
    host = Host(name="a1", access=Access(transport="local", python=sys.executable), reachable=True)
    LinkSession(host).close()
    assert not canary.exists()
