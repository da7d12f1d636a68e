"""Hundreds of folders made to harm: no traceback, no hang, 2 GiB at most, nothing started or written elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prober.asking.recording import HostNotes, Recorded, write_recording
from tests.cli.hostile_folders import FIRST, SECOND, Change, clear, make_hostile
from tests.cli.test_foreign_run_folders import LOOKS, write_honest
from tests.cli.test_islands_status_page import RUN_ID, islands_plan, write_run
from tests.cli.test_model_command import write_folder, write_tokenizer
from tests.cli.watched_commands import WatchedCommands, watched_commands
from tests.seeds import seed_ranges

Honest = Callable[[Path], object]
SEEDS = 50  # of each kind and set: 200 run folders, 300 others
HOST_LIST = "NodeName=n1 NodeAddr=10.0.0.1 State=IDLE Gres=gpu:8 Partitions=a\n"
NODE = {
    "metadata": {"name": "n1", "labels": {}},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
}
TOPOGRAPH = {"instances": [{"id": "n1", "network_layers": ["s1"]}, {"id": "n2", "labels": {"a": "b"}}]}
RUN_LOOKS = (*LOOKS.values(), ("ps", "--all"), ("ps", "--all", "--json"))


def honest_run(folder: Path) -> None:
    write_honest(folder)
    (folder / "run").rename(folder / "foreign")
    (folder / "state" / "holmes" / "runs").mkdir(parents=True)
    (folder / "state" / "holmes" / "runs" / "r").symlink_to("../../../foreign")


def honest_islands(folder: Path) -> None:
    honest_run(folder)
    clear(folder / "foreign")
    write_run(folder, islands_plan()).rename(folder / "foreign")
    assert (folder / RUN_ID).exists() is False


def honest_model(folder: Path) -> None:
    (folder / "foreign").mkdir()
    write_folder(folder / "foreign")
    write_tokenizer(folder / "foreign")
    (folder / "foreign" / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "a"}')
    (folder / "foreign" / "generation_config.json").write_text('{"eos_token_id": [0, 1]}')


def honest_recording(folder: Path) -> None:
    port = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tLink layer: InfiniBand\n"
    for number, host in enumerate(("a1", "b1")):
        outputs = (Recorded("ibstat", port, 0), Recorded("uname -r", "6.1\n", 0), Recorded("ip -j addr", "[]", 0))
        write_recording(folder / "foreign", host, outputs, HostNotes(position=number))


def honest_lists(folder: Path) -> None:
    (folder / "foreign").mkdir()
    (folder / "foreign" / "slurm").write_text(HOST_LIST)
    (folder / "foreign" / "kubernetes.json").write_text(json.dumps({"kind": "NodeList", "items": [NODE]}))
    (folder / "foreign" / "topograph.json").write_text(json.dumps(TOPOGRAPH))
    (folder / "foreign" / "hostfile").write_text("a1 slots=8\nme@b[1-4]\n")


def of_run(words: Sequence[str]) -> tuple[str, ...]:
    return tuple("foreign" if word == "run" else word for word in words)


KINDS: dict[str, tuple[Honest, tuple[tuple[str, ...], ...]]] = {
    "run": (honest_run, tuple(map(of_run, RUN_LOOKS))),
    "islands": (honest_islands, tuple(map(of_run, RUN_LOOKS))),
    "model": (honest_model, (("model", "foreign"),)),
    "recording": (honest_recording, (("probe", "--replay", "foreign", "-o", "inventory.json"),)),
    "lists": (
        honest_lists,
        (
            ("hosts", "--from", "slurm", "foreign/slurm", "-o", "made1.yaml"),
            ("hosts", "--from", "kubernetes", "foreign/kubernetes.json", "-o", "made2.yaml"),
            ("hosts", "--from", "topograph", "foreign/topograph.json", "-o", "made3.yaml"),
            ("probe", "foreign/hostfile", "--replay", "none"),
        ),
    ),
}


def faults_of(kind: str, changes: Sequence[Change], seeds: Sequence[int], place: Path) -> list[str]:
    """Return what went wrong with the hostile folders of those seeds."""
    honest, looks = KINDS[kind]
    (place / "honest").mkdir()
    honest(place / "honest")
    found = []
    with watched_commands() as commands:
        for seed in seeds:
            folder = place / "case"
            shutil.copytree(place / "honest", folder, symlinks=True)
            made = make_hostile(folder / "foreign", changes, seed)
            for words in looks:
                fault = _fault(commands, folder, words)
                if fault is not None:
                    found.append(f"{kind} {made}: holmes {' '.join(words)}: {fault}")
            shutil.rmtree(os.fsencode(folder))
    return found


def _fault(commands: WatchedCommands, folder: Path, words: tuple[str, ...]) -> str | None:
    for made in ("made1.yaml", "made2.yaml", "made3.yaml", "inventory.json" if words[0] == "probe" else "page.html"):
        (folder / made).unlink(missing_ok=True)
    return commands.run(folder, words, "foreign").fault


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [FIRST, SECOND], ids=["first", "second"])
@pytest.mark.parametrize("seeds", seed_ranges(SEEDS, few=0))
def test_hostile_folder_is_shown_or_refused_in_a_sentence(
    kind: str, changes: Sequence[Change], seeds: range, tmp_path: Path
) -> None:
    assert faults_of(kind, changes, seeds, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_look_at_hostile_folders_take_honest_ones(kind: str, tmp_path: Path) -> None:
    honest, looks = KINDS[kind]
    honest(tmp_path)
    with watched_commands() as commands:
        seen = [commands.run(tmp_path, words, "foreign") for words in looks]
    refused = {("plan", "islands"), ("status", "islands"), ("probe", "lists")}
    bad = [each for each in seen if each.fault or (each.code != 0 and (each.arguments[0], kind) not in refused)]
    assert bad == []


if __name__ == "__main__":
    import tempfile

    chosen = {"first": FIRST, "second": SECOND}[sys.argv[2]]
    with tempfile.TemporaryDirectory() as place:
        for line in faults_of(sys.argv[1], chosen, range(*map(int, sys.argv[3:5])), Path(place)):
            print(line, flush=True)
