"""The wheel: one package, `holmes`, with the repository's other packages inside it.

Names such as `planner` and `templates` are no tool's own, so none is put at the top of site-packages. Inside `holmes`
imports among these packages are relative, which is all that differs from the sources: an IDE and mypy follow them, and
`holmes_runtime`, which imports nothing but itself and torch, is the same package when it lies alone on a node.
An editable install leaves the folders where they are.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

OUTER = "holmes"
INNER = ("holmes_cli", "holmes_core", "prober", "planner", "launcher", "holmes_runtime", "templates")
STAYS = "editable_wheel" in sys.argv


class BuildInside(build_py):  # type: ignore[misc]  # setuptools has no types
    """Copies modules with relative imports."""

    def build_module(self, module, module_file, package):  # type: ignore[no-untyped-def]
        """As the base class does; `package` is the dotted name in the wheel."""
        outfile, copied = super().build_module(module, module_file, package)
        if not STAYS:
            written = Path(outfile)
            folders = package.split(".") if isinstance(package, str) else package
            written.write_text(relative_imports(Path(module_file).read_text("utf-8"), folders), "utf-8")
        return outfile, copied


def relative_imports(source: str, package: Sequence[str]) -> str:
    """`source` of a module of `package`, such as ("holmes", "planner"), its imports among `INNER` made relative.

    Raises ValueError for an import that stands on several lines, or twice on one.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        absolute, relative = _twins(node, package)
        if isinstance(node, ast.stmt) and absolute != relative:
            line = lines[node.lineno - 1]
            if line.count(absolute) != 1:
                raise ValueError(f"line {node.lineno}: {line.strip()!r}: write `from PACKAGE import NAME`")
            lines[node.lineno - 1] = line.replace(absolute, relative)
    return "".join(lines)


def _twins(node: ast.AST, package: Sequence[str]) -> tuple[str, str]:
    """How the words of an import begin, and how they are to begin; equal where nothing changes."""
    match node:
        case ast.Import(names=[ast.alias(name=name)]) if name in INNER:
            return f"import {name}\n", f"from {'.' * len(package)} import {name}\n"
        case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] in INNER:
            first, _, rest = module.partition(".")
            inside = first in package[1:2]  # no dots more than needed: an inner package may lie alone
            dots = "." * (len(package) - inside)
            return f"from {module} import", f"from {dots}{rest if inside else module} import"
    return "", ""


def main() -> None:
    """What setuptools calls."""
    packages = find_packages(include=[OUTER, *(pattern for name in INNER for pattern in (name, f"{name}.*"))])
    folders = {} if STAYS else {OUTER: OUTER, **{f"{OUTER}.{name}": name for name in INNER}}
    inside = [name if STAYS or name == OUTER else f"{OUTER}.{name}" for name in packages]
    setup(packages=inside, package_dir=folders, cmdclass={"build_py": BuildInside})


if __name__ == "__main__":
    main()
