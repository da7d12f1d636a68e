"""holmes doctor on broken or hostile answers of hosts: an answer or none, and no traceback; and what leaves a host."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.anonymize import anonymize
from prober.asking.commands import cut
from prober.asking.recording import read_recorded_hosts
from prober.running.diagnose_run import RunDiagnosis, diagnose_run
from prober.running.watch_hosts import run_of
from prober.running.watch_script import watch_script
from tests.builders.watched_runs import RECORDED, Watched

TOKEN = "@@0123456789abcdef"


@given(st.integers(0, 2**32))
def test_answers_cut_at_any_place_raise_nothing(seed: int) -> None:
    drawn = random.Random(seed)
    watched = Watched()
    for outputs in watched.hosts.values():
        for at, output in enumerate(outputs):
            if drawn.random() < 0.3:
                outputs[at] = replace(output, text=output.text[: drawn.randrange(len(output.text) + 1)])
        del outputs[drawn.randrange(len(outputs)) :]
    assert isinstance(watched.diagnosis(), RunDiagnosis)


@given(
    st.integers(0, 2**32),
    st.sampled_from(["9" * 30, "\x00\x1b[2J", "-1", "é", " ", "\n", "0x", ":", "(", "18446744073709551615"]),
)
def test_any_bytes_in_any_answer_raise_nothing(seed: int, piece: str) -> None:
    drawn = random.Random(seed)
    watched = Watched()
    for outputs in watched.hosts.values():
        for at, output in enumerate(outputs):
            if output.text and drawn.random() < 0.5:
                places = [drawn.randrange(len(output.text)) for _ in range(3)]
                text = output.text
                for place in places:
                    text = text[:place] + piece + text[place + drawn.randrange(4) :]
                outputs[at] = replace(output, text=text)
    assert isinstance(watched.diagnosis(), RunDiagnosis)


def test_numbers_of_any_size_raise_nothing() -> None:
    watched = Watched()
    for outputs in watched.hosts.values():
        for at, output in enumerate(outputs):
            if "uptime" not in output.command:
                digits = str.maketrans("12345678", "99999999")
                outputs[at] = replace(output, text=output.text.translate(digits))
    assert isinstance(watched.diagnosis(), RunDiagnosis)


def test_anonymous_copy_has_no_address_and_the_same_verdict(tmp_path: Path) -> None:
    anonymize(RECORDED, tmp_path / "copy")
    hosts = read_recorded_hosts(tmp_path / "copy")
    texts = [output.text for recording in hosts.values() for output in recording.outputs]
    assert not any("10.1.0.1" in text or "10.9.0.1" in text for text in texts)
    run = run_of(hosts)
    assert [rank.host for rank in run.ranks] == list(hosts)
    assert {(path.sender, path.receiver) for path in run.paths if path.leaves_host} == {
        tuple(hosts),
        tuple(hosts)[::-1],
    }
    assert diagnose_run(run).cause == Watched().diagnosis().cause == "none"


@pytest.mark.process
def test_no_secret_of_a_process_leaves_its_host(tmp_path: Path) -> None:
    """Variables outside the list and values of options stay; names of options and small numbers go."""
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "HF_TOKEN": "sesame1",
        "NCCL_DEBUG": "INFO",
        "WANDB_API_KEY": "sesame2",
    }
    script = tmp_path / "train.py"
    lines = [
        "import sys",
        "print('h1:1:2 [0] NCCL INFO Using network IB')",
        "print('sesame7 h1:1:2 [0] NCCL INFO cudaDriverVersion 12040')",
        "print(dict(NCCL_DEBUG='INFO', KEY='sesame8'), flush=True)",
        "print('ready', file=sys.stderr, flush=True)",
        "sys.stdin.read()",
    ]
    script.write_text("\n".join(lines), encoding="utf-8")
    options = ["--token:sesame9", "--api-key=sesame3", "--token", "sesame4", "--pin", "123", "--tp", "4"]
    options += ["s3://sesame5:x@y", "-psesame6"]
    words = [sys.executable, str(script), *options, "--password", "777123"]
    with open(tmp_path / "out.log", "wb") as out:
        process = subprocess.Popen(
            words, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE
        )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        done = subprocess.run(
            ["sh", "-s"], input=watch_script(2, None, TOKEN).encode(), capture_output=True, check=True
        )
    finally:
        process.communicate()
    answer = done.stdout.decode(errors="replace")
    texts = {output.command: output.text for output in cut(answer, TOKEN)}
    own = "\n".join(line for text in texts.values() for line in text.splitlines() if f"/proc/{process.pid}/" in line)
    assert "environ:NCCL_DEBUG=INFO" in own
    assert "cmdline:train.py" in own
    assert "cmdline:--tp\n" in own
    assert "NCCL INFO Using network IB" in answer
    assert "NCCL INFO cudaDriverVersion" in answer
    assert "sesame" not in answer
    assert "777123" not in own
