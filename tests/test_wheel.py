"""The wheel as it is installed: one package, every command in an empty folder, and torch only where ranks run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_cli import VERSION
from holmes_cli.app import COMMANDS
from setup import INNER, relative_imports
from tests.builders.wheels import PIP, own_wheel, sources

HOSTS = f"""\
transport: local
python: {sys.executable}
activate: unset PYTHONPATH
speeds_gbps: {{lo: 20}}
hosts: [{{name: a1, cluster: a}}, {{name: b1, cluster: b}}]
"""
JOB = """\
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, seq_length: 32}}
data: {{path: {text}}}
global_batch_size: 4
steps: 2
device: cpu
compute: {{flops_per_s: 1.0e10}}
parallel: {{pp: 2, dp: 1, micro_batch_size: 2}}
"""


@pytest.mark.parametrize(
    ("package", "absolute", "relative"),
    [
        (("holmes_train",), "from holmes_cli.app import main", "from .holmes_cli.app import main"),
        (("holmes_train", "planner", "cost"), "from planner.cost.slot import a", "from ..cost.slot import a"),
        (("holmes_train", "planner", "cost"), "from holmes_core.units import a", "from ...holmes_core.units import a"),
        (("holmes_train", "holmes_runtime"), "from holmes_runtime import metrics", "from . import metrics"),
        (("holmes_train", "launcher", "prepare"), "import holmes_runtime", "from ... import holmes_runtime"),
        (("holmes_train", "planner"), "from plannery import a", "from plannery import a"),
        (("holmes_train", "planner"), "TEXT = '''\nfrom planner.cost import a\n'''", None),
    ],
)
def test_imports_among_our_packages_become_relative(
    package: tuple[str, ...], absolute: str, relative: str | None
) -> None:
    expected = absolute if relative is None else relative
    assert relative_imports(f"if True:\n    {absolute}\n", package) == f"if True:\n    {expected}\n"


def test_an_import_whose_place_is_not_clear_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1"):
        relative_imports("from planner.cost import (a); from planner.cost import b\n", ("holmes_train", "prober"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of this tree, and nothing else, is installed.

    An earlier build has left a package there that is gone.
    """
    site, source = tmp_path_factory.mktemp("site"), sources(tmp_path_factory.mktemp("sources"))
    (source / "build" / "lib" / "stale").mkdir(parents=True)
    (source / "build" / "lib" / "stale" / "__init__.py").touch()
    wheel = own_wheel(tmp_path_factory.mktemp("wheels"), source)
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return site


def holmes(site: Path, folder: Path, *words: str, before: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The installed command in `folder`; what lies in the folders `before` is imported first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*before, site)))}
    environment["XDG_STATE_HOME"] = str(site.parent / "state")
    return subprocess.run(
        [str(site / "bin" / "holmes"), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """A folder that, on the path, is as if torch were not installed."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n", encoding="utf-8")
    return folder


@pytest.mark.process
def test_site_packages_gain_one_package_of_its_own_modules(site: Path) -> None:
    assert {path.name for path in site.iterdir()} == {"bin", "holmes_train", f"holmes_train-{VERSION}.dist-info"}
    assert (site / f"holmes_train-{VERSION}.dist-info" / "top_level.txt").read_text(
        encoding="utf-8"
    ) == "holmes_train\n"
    absolute = []
    for file in sorted((site / "holmes_train").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            absolute += [f"{file}: {name}" for name in names if name.split(".")[0] in INNER]
    assert absolute == []
    assert {name: (site / "holmes_train" / name).is_dir() for name in INNER} == dict.fromkeys(INNER, True)
    assert (site / "holmes_train" / "py.typed").is_file()


@pytest.mark.process
def test_every_installed_command_explains_itself_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    assert holmes(site, tmp_path, "--version").stdout == f"holmes {VERSION}\n"
    said = {name: holmes(site, tmp_path, name, "-h") for name in COMMANDS}
    assert {name: done.stderr for name, done in said.items() if done.returncode != 0} == {}
    assert [name for name, done in said.items() if f"holmes {name}" not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_runs_are_probed_planned_and_launched_by_a_python_without_torch(
    site: Path, tmp_path: Path, without_torch: Path
) -> None:
    """The hosts, which do not take PYTHONPATH over, have it."""
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB.format(text=tmp_path / "text.txt"), encoding="utf-8")
    (tmp_path / "text.txt").write_text("Roses are red, violets are blue. " * 200, encoding="utf-8")
    for words in (
        ("probe", "hosts.yaml", "--html", "site.html"),
        ("plan", "job.yaml", "--html", "plan.html"),
        ("launch", "plan.json", "--dry-run"),
        ("launch", "plan.json"),
    ):
        done = holmes(site, tmp_path, *words, before=(without_torch,))
        assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["steps_done"] == 2
    drawn = holmes(site, tmp_path, "status", run.name, "--html", "run.html", before=(without_torch,))
    assert drawn.returncode == 0, drawn.stderr
    assert {page.name for page in tmp_path.glob("*.html")} == {"site.html", "plan.html", "run.html"}


@pytest.mark.process
def test_hosts_that_are_this_python_need_torch_in_it(site: Path, tmp_path: Path, without_torch: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("transport: local\nhosts: [a1]\n", encoding="utf-8")
    done = holmes(site, tmp_path, "probe", "hosts.yaml", before=(without_torch,))
    assert done.returncode == 1
    assert "has no torch" in " ".join(done.stdout.split())
