"""From nothing to the first demo: Holmes by pip, pipx and uv, and next to another package that is called alike."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from holmes_cli import VERSION
from tests.builders.wheels import (
    PIP,
    fresh_environment,
    install,
    link_packages,
    other_wheel,
    own_wheel,
    show_packages,
    sources,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = "holmes demo"


@dataclass(frozen=True)
class Shell:
    """A user's shell: a home of its own, and programs that come first on its path."""

    home: Path
    programs: tuple[Path, ...]
    folder: Path

    def run(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end."""
        path = os.pathsep.join([*map(str, self.programs), "/usr/bin:/bin"])
        state = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env={**kept, **state, "PATH": path, **more},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Path:
    return own_wheel(tmp_path_factory.mktemp("wheels"), tree)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pipx and uv; they, and the setuptools that they build with, come from the package index."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    words = ("--python", str(folder / "env" / "bin" / "python"), "install", "pipx", "uv", "setuptools>=77")
    done = subprocess.run([*PIP, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pipx and uv cannot be installed here: {(done.stderr.splitlines() or ['?'])[-1]}")
    return folder / "env" / "bin"


def shown_in_readme(command: str) -> str:
    assert f"\n{command}" in README
    return command


def demo_succeeds(shell: Shell) -> None:
    done = shell.run(f"{shown_in_readme(DEMO)} --steps 1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Summary" in done.stdout
    assert "note:" not in done.stderr


def test_the_wheel_is_installed_by_pip_and_runs_the_demo(tmp_path: Path, wheel: Path) -> None:
    """pip makes sure that installed packages meet its requirements."""
    environment = fresh_environment(tmp_path)
    install(environment, f"{wheel}[torch]")
    demo_succeeds(Shell(tmp_path, (environment / "bin",), tmp_path))


def test_a_checkout_is_installed_by_pipx_and_runs_the_demo(tmp_path: Path, tree: Path, tools: Path) -> None:
    """Its requirements are met by what is there: pipx lets each environment see its shared packages."""
    shell = Shell(tmp_path, (tmp_path / ".local/bin", tools, Path(sys.executable).parent), tree)
    command = shown_in_readme("pipx install '.[torch]'")
    homes = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / ".local/bin")}
    shared = shell.run("pipx upgrade-shared", **homes)
    assert shared.returncode == 0, shared.stdout + shared.stderr
    (site,) = (tmp_path / "pipx/shared").glob("lib/python*/site-packages")
    link_packages(site)
    done = shell.run(f"{command} --backend pip --python {sys.executable}", **homes)
    assert done.returncode == 0, done.stdout + done.stderr
    demo_succeeds(Shell(tmp_path, shell.programs, tmp_path))


def test_a_checkout_is_installed_by_uv_and_runs_the_demo(tmp_path: Path, tree: Path, tools: Path) -> None:
    """Without its requirements, which it then sees."""
    shell = Shell(tmp_path, (tmp_path / ".local/bin", tools, Path(sys.executable).parent), tree)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = re.findall(r'^    "([\w-]+)[>=]', text, re.M)
    (tmp_path / "none.txt").write_text("".join(f"{name}; python_version < '3'\n" for name in (*names, "torch")))
    command = shown_in_readme("uv tool install '.[torch]'")
    homes = {"UV_TOOL_DIR": str(tmp_path / "uv"), "UV_TOOL_BIN_DIR": str(tmp_path / ".local/bin")}
    done = shell.run(
        f"{command} --overrides {tmp_path}/none.txt --python {sys.executable}",
        **homes,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    show_packages(tmp_path / "uv/holmes-train", tmp_path / "links")
    demo_succeeds(Shell(tmp_path, shell.programs, tmp_path))


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("is_script", [True, False])
def test_next_to_another_holmes_both_work_and_the_first_run_says_how(
    tmp_path: Path, wheel: Path, ours_first: bool, is_script: bool
) -> None:
    environment = fresh_environment(tmp_path)
    other = other_wheel(tmp_path, is_script)
    for each in (wheel, other) if ours_first else (other, wheel):
        install(environment, "--no-deps", str(each))
    shell = Shell(tmp_path, (environment / "bin",), tmp_path)

    first, second = (shell.run("holmes-train sketch 'a: 1 x 8 H100, IB 8x400' --json") for _ in range(2))
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["hosts"]
    assert first.stderr.endswith(second.stderr)
    note, hint = first.stderr.removesuffix(second.stderr).splitlines()
    assert note.startswith("note: the package otherholmes 1.0 in this environment has a command `holmes` too")
    (theirs,) = re.findall(r"; `(.+)` starts", note)
    assert ("-m holmes.main" in theirs) is is_script
    assert shell.run(theirs).stdout == "the other one\n"
    (ours,) = re.findall("`(.+)`", hint)
    assert ours == "holmes-train"
    assert shell.run(f"{ours} --version").stdout == f"holmes {VERSION}\n"
    python = shlex.quote(str(environment / "bin/python"))
    assert shell.run(f"{python} -m holmes_train --version").stdout == f"holmes {VERSION}\n"
    assert shell.run("holmes --version").stdout == ("the other one\n" if ours_first else f"holmes {VERSION}\n")


def test_another_holmes_first_on_the_path_is_named_once(tmp_path: Path, wheel: Path) -> None:
    environment = fresh_environment(tmp_path)
    install(environment, "--no-deps", str(wheel))
    (tmp_path / "early").mkdir()
    shell = Shell(tmp_path, (tmp_path / "early", environment / "bin"), tmp_path)
    assert shell.run("holmes --version").stderr == ""

    (tmp_path / "early" / "holmes").write_text("#!/bin/sh\necho the other one\n", encoding="utf-8")
    (tmp_path / "early" / "holmes").chmod(0o755)
    first, second = shell.run("holmes-train --version"), shell.run("holmes-train --version")
    assert f"`{tmp_path}/early/holmes` starts that one" in first.stderr
    assert (first.stdout, second.stdout, second.stderr) == (f"holmes {VERSION}\n", f"holmes {VERSION}\n", "")


def test_completion_and_help_are_of_the_name_that_was_typed(tmp_path: Path, wheel: Path) -> None:
    environment = fresh_environment(tmp_path)
    install(environment, "--no-deps", str(wheel))
    shell = Shell(tmp_path, (environment / "bin",), tmp_path)
    assert "Usage: holmes-train plan" in shell.run("holmes-train plan -h").stdout
    words = {"COMP_WORDS": "holmes-train pl", "COMP_CWORD": "1", "_HOLMES_TRAIN_COMPLETE": "complete_bash"}
    assert shell.run("holmes-train", **words).stdout.split() == ["plan"]


@pytest.mark.parametrize("broken", ["metadata", "state"])
def test_a_look_that_fails_keeps_no_command_from_running(tmp_path: Path, wheel: Path, broken: str) -> None:
    environment = fresh_environment(tmp_path)
    install(environment, "--no-deps", str(wheel), str(other_wheel(tmp_path, True)))
    (site,) = environment.glob("lib/python*/site-packages")
    if broken == "metadata":
        (site / "otherholmes-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff[console_scripts\nholmes")
    else:
        (tmp_path / "state").write_text("a file, and no folder", encoding="utf-8")
    done = Shell(tmp_path, (environment / "bin",), tmp_path).run("holmes-train --version")
    assert (done.returncode, done.stdout) == (0, f"holmes {VERSION}\n")
    assert "Traceback" not in done.stderr
