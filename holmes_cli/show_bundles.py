"""The dry run: exactly what a launch would send and start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_cli.terminal import out
from launcher.bundle import NodeBundle


def show_bundles(bundles: Sequence[NodeBundle], runtime: Mapping[str, str]) -> None:
    """Print every node's files, variables with reasons, and commands; nothing is touched."""
    size = sum(len(text) for text in runtime.values())
    _line(f"the bundled runtime goes to every node: {len(runtime)} files, {size} bytes: {', '.join(runtime)}")
    for bundle in bundles:
        node = bundle.node
        _line(f"\n== node {node.node_rank}: {node.cluster}/{node.host}")
        _line(f"$ {bundle.unpack_command}    (a tar archive on its standard input)")
        _line(f"$ {bundle.start_command}")
        for variable in node.environment:
            _line(f"{variable.name}={variable.value}    # {variable.reason}")
        for name, text in bundle.files.items():
            _line(f"-- {name}\n{text.rstrip()}")


def _line(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
