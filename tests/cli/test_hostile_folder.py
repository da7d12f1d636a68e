"""Commands that start Python here import nothing from the folder they are started in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holmes_cli.demo.demo_site import measured_compute
from tests.cli.conftest import Command

pytestmark = pytest.mark.process
MODEL = {"hidden_size": 32, "num_heads": 2, "seq_length": 16}


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is made where modules of the working folder are imported, which other processes begin in."""
    made = tmp_path / "CANARY"
    text = f"open({str(made)!r}, 'w').write(__name__)\nraise ImportError(__name__)\n"
    (tmp_path / "typing").mkdir()
    for name in ("typing/__init__", "json", "torch", "re", "argparse", "yaml", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return made


def test_probe_of_this_machine(command: Command, canary: Path, tmp_path: Path) -> None:
    hosts = f"transport: local\npython: {sys.executable}\nhosts: [a1]\n"
    (tmp_path / "hosts.yaml").write_text(hosts, encoding="utf-8")
    done = command("probe", "hosts.yaml", "--json")
    python = json.loads(done.stdout)["hosts"][0]["software"]["python"]
    assert python.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert not canary.exists()


def test_measuring_for_the_demo(canary: Path) -> None:
    assert measured_compute(MODEL, 1, 1, rounds=1)
    assert not canary.exists()
