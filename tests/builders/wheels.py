"""The wheel of this tree, one of another package that is called alike, and environments to install them into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from setup import INNER, OUTER

ROOT = Path(__file__).parent.parent.parent
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OURS = ("holmes", "__editable__", "pip", "distutils-precedence", "_distutils_hack")
OTHER_FILES = {
    "holmes/__init__.py": "",
    "holmes/main.py": "def run():\n    print('the other one')\n",
    "otherholmes-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: otherholmes\nVersion: 1.0\n",
    "otherholmes-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "otherholmes-1.0.dist-info/entry_points.txt": "[console_scripts]\nholmes=holmes.main:run\n",
}


def sources(folder: Path) -> Path:
    """Copy the sources of a wheel, so that building it leaves nothing in the checkout."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in (OUTER, *INNER):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def own_wheel(folder: Path, source: Path) -> Path:
    """The wheel of a source tree, built by this environment's setuptools."""
    words = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source))
    subprocess.run([*PIP, *words], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def other_wheel(folder: Path, is_script: bool) -> Path:
    """A package with the package and command `holmes`, by its main module a script or not."""
    files = OTHER_FILES | {"otherholmes-1.0.dist-info/RECORD": "".join(f"{name},,\n" for name in OTHER_FILES)}
    if is_script:
        files["holmes/main.py"] += "\n\nif __name__ == '__main__':\n    run()\n"
    wheel = folder / "otherholmes-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def link_packages(folder: Path) -> None:
    """Link this environment's packages, torch among them, into a folder: to install them again takes minutes.

    Neither Holmes as installed here nor pip is among them.
    """
    folder.mkdir(exist_ok=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(OURS) and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def show_packages(environment: Path, links: Path) -> None:
    """Let an environment see the packages of this one, by links in a folder."""
    link_packages(links)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "seen.pth").write_text(f"{links}\n", encoding="utf-8")


def fresh_environment(folder: Path) -> Path:
    """An environment with nothing installed that sees the packages of this one."""
    venv.create(folder / "env", symlinks=True)
    show_packages(folder / "env", folder / "links")
    return folder / "env"


def install(environment: Path, *what: str) -> None:
    """Install what is given by pip into an environment, from no index: what is needed is there."""
    words = ("--python", str(environment / "bin" / "python"), "install", "--no-index", *what)
    subprocess.run([*PIP, *words], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
