"""`holmes sketch`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.show_sketch import show_sketch
from holmes_cli.screen.terminal import out, print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file, read_user_file, signed_parts, write_signed
from planner.sketch.sketch import Sketch, parse_sketch
from planner.sketch.sketched_inventory import sketched_inventory

USUAL = Path("sketch.json")
MACHINES = """Clusters and the wires between them, or a YAML file (docs/sketch.md).

`a: 8 x 8 H100, IB 8x400` is 8 hosts of 8 H100, each with 8 InfiniBand cards of 400 Gbit/s.

`b: 4 x 8 A100-80, RoCE 2x200, Ethernet 1x100` also says what leads out of b: one card of 100 Gbit/s.

`25 between`: hosts reach hosts of other clusters at 25 Gbit/s each; `a-b: 10 at 20 ms`: those two alone.

Example: 'a: 8 x 8 H100, IB 8x400; b: 8 x 8 A100-80, RoCE 2x200; 25 between'."""


def sketch_command(
    machines: Annotated[str, typer.Argument(help=MACHINES)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; overwrites only a sketch.", show_default=str(USUAL)),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the inventory as JSON instead; write it only with -o.")
    ] = False,
) -> None:
    """Write an inventory of machines you do not have yet from a line of text, for `holmes plan`."""
    path = Path(machines)
    sketch = read_user_file(Sketch, path) if path.suffix in (".yaml", ".yml") else parse_sketch(machines)
    inventory = sketched_inventory(sketch)
    if output is not None or not as_json:
        output = output or _usual(inventory)
        if _refuse_other_files(output):
            print_err(f"{output}: overwrites an earlier sketch")
        write_signed(output, inventory)
    if as_json:
        out.file.writelines(signed_parts(inventory))
    else:
        show_sketch(inventory)
        planned = f"holmes plan job.yaml -i {output} -o sketch-plan.json"  # plan.json may be one to launch
        print_out(f"\nsketch: {output}\nnext: {planned}")


def _usual(inventory: Inventory) -> Path:
    """Return the file without `-o`. Raises HolmesError where it holds anything but this sketch."""
    if USUAL.exists() or USUAL.is_symlink():
        with suppress(HolmesError):
            if read_file(Inventory, USUAL).digest() == inventory.digest():
                return USUAL
        raise HolmesError(
            f"{USUAL}: exists and holds something else; only `-o` overwrites it",
            f"name the file to write: `-o other.json`, or `-o {USUAL}` to overwrite a sketch",
        )
    return USUAL


def _refuse_other_files(output: Path) -> bool:
    """Return True if the file exists. Raises HolmesError if it holds anything but a sketch, such as a probe."""
    if not output.exists() and not output.is_symlink():
        return False
    with suppress(HolmesError):
        if read_file(Inventory, output).sketch is not None:
            return True
    raise HolmesError(f"{output}: exists and is not a sketch", "name another file with `-o`, or move that one away")
