"""docs/job.md and docs/hosts.md, written from the records of the files: `python -m tests.doc_keys`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.job import Job
from holmes_core.records.reference import Key, keys_of
from planner.sketch.sketch import Sketch

DOCS = Path(__file__).parent.parent / "docs"
_JOB = """\
# job.yaml, key by key

`holmes init` writes a first file. Only `model`, `steps` and `global_batch_size` are required, and `data`
unless `trainer` names your own trainer. An unknown key is refused, with the nearest known one. `holmes job
--explain KEY` prints a key as below, and `holmes plan --set KEY=VALUE` overrides one. More on checkpoints:
[runtime.md](runtime.md); data: [data.md](data.md); models: [models.md](models.md). Written from the records by
`python -m tests.doc_keys`.
"""
_HOSTS = """\
# hosts.yaml, key by key

`holmes init` writes a first file, and `holmes hosts` writes one from a scheduler's list. Only `hosts` is required. A
host's missing keys come from the top of the file, then from the SSH configuration. How the probe works:
[probe.md](probe.md). Written from the records by `python -m tests.doc_keys`.
"""
_SKETCH = """\
# Sketches: plans for machines that are not there yet

`holmes sketch` writes an inventory from a line of text, and `holmes plan` plans for it as for probed machines. Use it
to size a purchase, compare offers or reproduce a paper. The tutorial [Size a purchase](tutorials/purchase.md) shows
how, and [ten public clusters](ten-clusters.md) has lines to copy.

```
holmes sketch 'a: 8 x 8 H100, IB 8x400; b: 8 x 8 A100-80, RoCE 2x200; 25 between'      # writes sketch.json
holmes sketch 'a: 4 x 8 H100, IB 8x400, Ethernet 1x100; b: 2 x 4 L40S, Ethernet 2x25; a-b: 10 at 15 ms' -o other.json
holmes sketch machines.yaml -o rack.json                                               # the rare things, below
holmes plan job.yaml -i sketch.json -o sketch-plan.json
```

| text | meaning |
|---|---|
| `a: 8 x 8 H100, IB 8x400` | Cluster a: 8 hosts of 8 H100; each host has 8 InfiniBand cards of 400 Gbit/s. |
| `IB 8x2x200` | 8 cards of two ports of 200 Gbit/s, all in use. Kinds are IB, RoCE, EFA and Ethernet. |
| `, Ethernet 1x100` after it | A host's cards that lead out of the cluster; by default as fast as the fastest wire. |
| `25 between` | Each host reaches hosts of other clusters at 25 Gbit/s, but at most at its cards' rate. |
| `a-b: 10 at 20 ms, b-c: 5` | The same for these pairs only, with the one-way latency of a message. |

Separate parts by `;`. GPUs have their usual names: `A100-40`, `H100`, `H100 PCIe`, `L40S`. An unknown name is refused
with the nearest known name and a list of all. Memory is what nvidia-smi shows for that GPU; NVLink follows the usual
product.

The field `sketch` marks the inventory as a sketch. So does every plan made from it, in its first line and in plan.json.
`holmes launch` and `holmes emit` refuse such a plan, and `holmes calibrate`, `holmes hosts --to`, `holmes probe --diff`
and `holmes plan --calibrate` refuse such an inventory, with exit code 2. Check the table that `holmes sketch` prints:
Holmes plans for exactly that. It overwrites a file only if `-o` names it and it holds a sketch.

Avoid three traps. Ports are not cards: if both ports of a card share its rate, set `card_gbps`. An offer's storage and
management networks do not belong to the fabric. The measured bus bandwidth of an all-reduce is not a NIC's rate: at
least half of it never leaves the host.

## Keys of the YAML file

```yaml
clusters:
  - {name: rack, hosts: 18, gpus_per_host: 4, gpu: GB200, fabric: IB 4x400, nvlink_hosts: 18, memory_gib: 960}
  - name: old
    hosts: 8
    gpus_per_host: 8
    gpu: A100-40
    nvlinks: 0
    fabric: {kind: RoCE, cards: 2, ports_per_card: 2, gbps: 100, card_gbps: 126}
between: {gbps: 40, latency_ms: 2}
trunks:
  - {between: [rack, old], gbps: 100}
```

Written from the records by `python -m tests.doc_keys`.
"""
PAGES: dict[str, tuple[type[BaseModel], str]] = {
    "job.md": (Job, _JOB),
    "hosts.md": (HostsFile, _HOSTS),
    "sketch.md": (Sketch, _SKETCH),
}
_HEADINGS = ("key", "type", "default", "meaning", "example")


def page(name: str) -> str:
    """The text of a page."""
    cls, introduction = PAGES[name]
    return "\n".join([introduction, *_sections(keys_of(cls))])


def _sections(keys: Sequence[Key]) -> Iterator[str]:
    for section in dict.fromkeys(key.section for key in keys):
        about = next((key for key in keys if key.name == section.removesuffix("[]")), None)
        if about is not None:
            yield f"## `{section}`\n\n{about.meaning}\n"
        yield _row(_HEADINGS)
        yield "|---" * len(_HEADINGS) + "|"
        for key in keys:
            if key.section == section:
                last = key.name.rpartition(".")[2]
                example = f"`{last}: {key.example}`" if key.example else f"below: `{key.name}`"
                yield _row((f"`{last}`", key.type, key.default, key.meaning, example))
        yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")
