"""The wheel: one package, `holmes_train`, with the repository's other packages inside it.

Names such as `planner` and `templates` are no tool's own, so none is put at the top of site-packages. Inside
`holmes_train` imports among these packages are relative, which is all that differs from the sources: an IDE and mypy
follow them, and `holmes_runtime`, which imports nothing but itself and torch, works when it lies alone on a node.
An editable install leaves the folders where they are.
"""

import ast
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

OUTER = "holmes_train"
INNER = ("holmes_cli", "holmes_core", "prober", "planner", "launcher", "holmes_runtime", "templates")
STAYS = "editable_wheel" in sys.argv


class BuildInside(build_py):  # type: ignore[misc]  # setuptools has no types
    """Copies modules with relative imports."""

    def run(self) -> None:
        """As the base class does, without what an earlier build has left: it would be in the wheel, too."""
        if not STAYS:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def build_module(self, module, module_file, package):  # type: ignore[no-untyped-def]
        """As the base class does; `package` is the dotted name in the wheel."""
        outfile, copied = super().build_module(module, module_file, package)
        if not STAYS:
            written = Path(outfile)
            folders = package.split(".") if isinstance(package, str) else package
            written.write_text(relative_imports(Path(module_file).read_text("utf-8"), folders), "utf-8")
        return outfile, copied


def relative_imports(source: str, package: Sequence[str]) -> str:
    """Return `source` of a module of `package`, such as ("holmes_train", "planner"), with relative imports.

    Inside an inner package no dots lead out of it: `holmes_runtime` lies alone on a node.

    Raises:
        ValueError: An import is the second one of its line, or has more than one blank between its words.
    """
    lines, up = source.splitlines(keepends=True), "." * len(package)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=[ast.alias(name=name)]) if name in INNER:
                absolute, relative = f"import {name}", f"from {up} import {name}"
            case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] in INNER:
                first, _, rest = module.partition(".")
                inside = first in package[1:2]
                absolute, relative = f"from {module} import", f"from {up[inside:]}{rest if inside else module} import"
            case _:
                continue
        line, start = lines[node.lineno - 1], node.col_offset
        if not line[start:].startswith(absolute):
            raise ValueError(f"line {node.lineno}: {line.strip()!r}: write `from PACKAGE import NAME`")
        lines[node.lineno - 1] = line[:start] + relative + line[start + len(absolute) :]
    return "".join(lines)


def main() -> None:
    """What setuptools calls."""
    packages = find_packages(include=[OUTER, *(pattern for name in INNER for pattern in (name, f"{name}.*"))])
    folders = {} if STAYS else {OUTER: OUTER, **{f"{OUTER}.{name}": name for name in INNER}}
    inside = [name if STAYS or name == OUTER else f"{OUTER}.{name}" for name in packages]
    setup(packages=inside, package_dir=folders, cmdclass={"build_py": BuildInside})


if __name__ == "__main__":
    main()
