"""The dry run: exactly what a launch would send and start."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_cli.screen.terminal import out
from holmes_core.records.plan import Plan
from launcher.prepare.bundle import NodeBundle


def show_bundles(bundles: Sequence[NodeBundle], plan: Plan) -> None:
    """Print what goes to all nodes, then every node's own files, variables with reasons, and commands."""
    _line("to every node that does not have it yet:")
    for parcel in bundles[0].parcels:
        size = sum(len(text) for text in parcel.files.values())
        _line(f"\n== parcel {parcel.digest}: {len(parcel.files)} files, {size} bytes")
        _line(f"$ {parcel.unpack_command}    (a compressed tar archive on its standard input)")
    for name, text in bundles[0].parcels[1].files.items():
        _line(f"-- {name}\n{text}")
    _line(f"-- of the runtime: {', '.join(bundles[0].parcels[0].files)}")
    first, port = plan.nodes[0], plan.job.master_port
    _line(f"\nrendezvous: {first.host} {first.shared_address}, the first free port from {port} on")
    for bundle in bundles:
        _show_bundle(bundle, plan)


def _show_bundle(bundle: NodeBundle, plan: Plan) -> None:
    node = bundle.node
    _line(f"\n== node {node.node_rank}: {node.cluster}/{node.host}")
    _line(f"$ {bundle.unpack_command}    (a compressed tar archive on its standard input)")
    _line(f"$ {bundle.start_command}")
    _line(f"$ {bundle.remove_command}    (when it has ended)")
    for variable in node.environment:
        _line(f"{variable.name}={variable.value}    # {variable.reason}")
    for name in sorted(plan.job.launch.environment):
        _line(f"{name}=...    # launch.environment in job.yaml; the value is in node-{node.node_rank}.env below")
    for name, file in sorted(plan.job.launch.secrets.items()):
        _line(f"{name}=...    # launch.secrets in job.yaml: the text of {file}, which is not shown")
    for name, text in bundle.files.items():
        _line(f"-- {name}\n{'(not shown)' if name in bundle.secrets else text}")


def _line(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True, end="" if text.endswith("\n") else "\n")
