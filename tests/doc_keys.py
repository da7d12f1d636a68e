"""docs/job.md and docs/hosts.md, written from the records of the files: `python -m tests.doc_keys`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.job import Job
from holmes_core.records.reference import Key, keys_of

DOCS = Path(__file__).parent.parent / "docs"
_JOB = """\
# job.yaml, key by key

`holmes init` writes a file to start from. Only `model`, `data`, `steps` and `global_batch_size` are required; an
unknown key is refused, with the nearest known one. `holmes job --explain KEY` prints a key as below, and
`holmes plan --set KEY=VALUE` overrides one. More on checkpoints: [runtime.md](runtime.md); data: [data.md](data.md);
models: [models.md](models.md). Written from the records by `python -m tests.doc_keys`.
"""
_HOSTS = """\
# hosts.yaml, key by key

`holmes init` writes a file to start from, `holmes hosts` one of what a scheduler lists. Only `hosts` is required. What
a host leaves out is as the top of the file says, and then as the SSH configuration says. How hosts are asked:
[probe.md](probe.md). Written from the records by `python -m tests.doc_keys`.
"""
PAGES: dict[str, tuple[type[BaseModel], str]] = {"job.md": (Job, _JOB), "hosts.md": (HostsFile, _HOSTS)}
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
