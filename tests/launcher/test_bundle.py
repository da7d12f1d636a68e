"""What is sent: whole, private, the same for the same plan, and nothing in it is ever taken for a command."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access, Container
from holmes_runtime.config.node_config import NodeConfig, memory_folder
from launcher.prepare.bundle import MISSING, UNPACKED, NodeBundle, archive
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables, read_user_variables
from tests.launcher.plans import cpu_plan, gpu_plan, with_access
from tests.planner.fleets import bed_job
from tests.seeds import EXPENSIVE

PLAN = cpu_plan()
NOTHING = UserVariables({}, {})
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)
nasty = st.sampled_from(
    ["$(touch canary)", "`touch canary`", "; touch canary", "'; touch canary; '", '"\ntouch canary\n"']
)
one_line = (words | nasty).filter(lambda text: not set(text) & set("\n\r"))
SHELL_WORDS = settings(EXPENSIVE, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bundle(access: Access, variables: UserVariables = NOTHING) -> NodeBundle:
    return prepare(with_access(PLAN, access), Attempt("20260101-000000-abcd"), variables)[0]


def shell(command: str, home: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`command` as sshd would run it for a user with that home."""
    environment = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    arguments = ["/bin/sh", "-c", command]
    return subprocess.run(arguments, input=stdin, capture_output=True, env=environment, cwd=home, check=False)


def unpack(one: NodeBundle, home: Path) -> list[str]:
    """Unpack the bundle's files and end their session so that they stay; return the lines that the node prints."""
    with holding(one, home, one.shipment) as session:
        lines = session_lines(session)
        session.kill()
    return lines


def holding(one: NodeBundle, home: Path, shipment: bytes) -> subprocess.Popen[bytes]:
    """The session that holds the bundle's files, with its files sent and its input open."""
    environment = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    pipe, arguments = subprocess.PIPE, ["/bin/sh", "-c", one.hold_command]
    session = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=home)
    assert session.stdin is not None
    session.stdin.write(shipment)
    session.stdin.flush()
    return session


def session_lines(session: subprocess.Popen[bytes]) -> list[str]:
    """The lines before the one that ends unpacking."""
    assert session.stdout is not None
    lines: list[str] = []
    for line in session.stdout:
        if line.decode() == f"{UNPACKED}\n":
            return lines
        lines.append(line.decode().rstrip("\n"))
    raise AssertionError(session.communicate()[1].decode())


def only_folder(home: Path) -> Path:
    """The folder of the only node that has one."""
    (folder,) = (home / ".cache/holmes/runs").glob("*/*")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose own name would run something if it were taken for words of a command."""
    path = tmp_path / 'it\'s "$(touch canary)" é'
    (path / "bin").mkdir(parents=True)
    yield path
    assert list(tmp_path.rglob("canary")) == []


@SHELL_WORDS
@given(root=st.sampled_from(("", "~")), python=one_line)
def test_python_of_hosts_yaml_is_one_word(home: Path, root: str, python: str) -> None:
    one = bundle(Access(python=f"{root}/nowhere/{python}"))
    unpack(one, home)
    for command in (one.start_command, one.follow_command(3), one.end_command):
        assert shell(command, home).returncode in (126, 127)
    assert list(home.rglob("canary")) == []
    shell(one.remove_command, home)


@SHELL_WORDS
@given(image=words | nasty, options=st.lists(words | nasty, max_size=3))
def test_image_and_options_reach_docker_as_they_are(home: Path, image: str, options: list[str]) -> None:
    (home / "bin" / "docker").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    (home / "bin" / "docker").chmod(0o755)
    container = Container(engine="docker", image=image, options=tuple(options))
    one = bundle(Access(container=container))
    unpack(one, home)
    said = shell(one.start_command, home).stdout.decode().split("\0")[:-1]
    assert said[said.index("--workdir") + 2 :] == [*options, image, "python3", "-m", "holmes_runtime.node.agent"]
    assert f"{home}/.cache/holmes:{home}/.cache/holmes" in said
    assert list(home.rglob("canary")) == []
    shell(one.remove_command, home)


@SHELL_WORDS
@given(value=one_line, secret=words | nasty)
def test_values_and_secrets_arrive_as_they_are_and_on_no_command_line(home: Path, value: str, secret: str) -> None:
    one, other = (bundle(Access(), UserVariables({"MINE": value}, {"TOKEN": each})) for each in (secret, "another"))
    unpack(one, home)
    folder = only_folder(home)
    config = NodeConfig.from_json((folder / "node.json").read_text(encoding="utf-8"))
    assert config.environment["MINE"] == value
    assert (folder / "secret-TOKEN").read_bytes().decode() == secret
    assert commands(one) == commands(other)  # a short secret may be a word of them
    shell(one.remove_command, home)


def commands(one: NodeBundle) -> list[str]:
    return [one.hold_command, one.start_command, one.follow_command(0), one.end_command, one.remove_command]


def test_what_ranks_keep_in_memory_is_removed_by_the_run_s_own_name_alone(home: Path) -> None:
    one = bundle(Access())
    kept = Path(memory_folder(one.run_id, one.node.host))
    other = kept.with_name(f"{kept.name}x")
    try:
        for folder in (kept, other):
            (folder / "0" / "save").mkdir(parents=True)
        assert shell(one.forget_command, home).returncode == 0
        assert not kept.exists()
        assert other.exists()
    finally:
        for folder in (kept, other):
            shutil.rmtree(folder, ignore_errors=True)


def test_files_on_a_node_are_private(home: Path) -> None:
    one = bundle(Access(), UserVariables({}, {"TOKEN": "t"}))
    said = unpack(one, home)
    for parcel in one.parcels:
        assert f"{MISSING} {parcel.digest}" in said
        assert shell(parcel.unpack_command, home, parcel.archive).returncode == 0
    for path in (home / ".cache").rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o077 == 0, path


def test_second_launch_of_a_plan_sends_no_parcel(home: Path) -> None:
    first, second = bundle(Access()), prepare(PLAN, Attempt("20260101-000001-ffff"), NOTHING)[0]
    for parcel in first.parcels:
        shell(parcel.unpack_command, home, parcel.archive)
    assert unpack(second, home) == []
    folder = only_folder(home)
    assert (folder / "holmes_runtime" / "node" / "agent.py").is_file()
    assert (folder / "run_config.json").is_file()
    assert len(second.archive) < 4096


def test_files_are_left_to_the_command_that_has_taken_them_and_only_one_can(home: Path) -> None:
    python = home / "bin" / "python3"
    python.write_text("#!/bin/sh\necho taken\nread -r _end\n", encoding="utf-8")
    python.chmod(0o755)
    one = bundle(Access(python=str(python)))
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with holding(one, home, one.shipment) as session:
        session_lines(session)
        start, pipe = ["/bin/sh", "-c", one.start_command], subprocess.PIPE
        with subprocess.Popen(start, stdin=pipe, stdout=pipe, env=environment, cwd=home) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline() == b"taken\n"
            assert shell(one.start_command, home).returncode != 0
            session.communicate()
            assert (only_folder(home) / "node.json").is_file()
            agent.communicate(b"\n")


def test_files_that_are_removed_come_back_by_no_late_start(home: Path) -> None:
    one = bundle(Access())
    with holding(one, home, one.shipment) as session:
        session_lines(session)
        session.communicate()
    assert shell(one.start_command, home).returncode != 0
    assert list((home / ".cache/holmes/runs").iterdir()) == []


def test_files_that_no_agent_begins_with_are_removed_when_their_sender_is_gone(home: Path) -> None:
    one = bundle(Access())
    with holding(one, home, one.shipment) as session:
        session_lines(session)
        assert (only_folder(home) / "node.json").is_file()
        session.communicate()
    assert list((home / ".cache/holmes/runs").iterdir()) == []


def test_a_sender_that_is_gone_midway_leaves_nothing(home: Path) -> None:
    one = bundle(Access())
    with holding(one, home, one.shipment[:100]) as session:
        _, stderr = session.communicate()
    assert session.returncode == 1
    assert stderr != b""
    assert list((home / ".cache/holmes/runs").iterdir()) == []
    parcel = one.parcels[0]
    assert shell(parcel.unpack_command, home, parcel.archive[:100]).returncode == 1
    assert list((home / ".cache/holmes/parcels").iterdir()) == []


def test_files_stay_while_their_sender_lives_and_signals_end_no_session(home: Path) -> None:
    one = bundle(Access())
    with holding(one, home, one.shipment) as session:
        session_lines(session)
        for number in (signal.SIGHUP, signal.SIGTERM):
            session.send_signal(number)
        assert (only_folder(home) / "node.json").is_file()
        session.communicate()
    assert list((home / ".cache/holmes/runs").iterdir()) == []


def test_parcel_sent_twice_at_once_is_whole(home: Path) -> None:
    parcel = bundle(Access()).parcels[0]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    command = ["/bin/sh", "-c", parcel.unpack_command]
    senders = [subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) for _ in range(4)]
    for sender in senders:
        sender.communicate(parcel.archive)
    assert [sender.returncode for sender in senders] == [0] * 4
    (found,) = (home / ".cache/holmes/parcels").iterdir()
    assert {str(path.relative_to(found)) for path in found.rglob("*.py")} == set(parcel.files)


def test_parcel_is_there_though_what_is_to_be_forgotten_vanishes(home: Path) -> None:
    parcel, find = bundle(Access()).parcels[0], home / "bin" / "find"
    find.write_text("#!/bin/sh\necho \"find: './.0.1': No such file or directory\" >&2\nexit 1\n", encoding="utf-8")
    find.chmod(0o755)
    done = shell(parcel.unpack_command, home, parcel.archive)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (home / ".cache/holmes/parcels" / parcel.digest).is_dir()


def test_what_was_not_used_for_a_month_is_forgotten_when_something_new_comes(home: Path) -> None:
    cache, parcel = home / ".cache/holmes", bundle(Access()).parcels[0]
    month_ago = time.time() - 32 * 86400
    for name, used_s in (("old", month_ago), ("used", time.time())):
        (cache / "parcels" / name).mkdir(parents=True)
        (cache / "compiled" / name).mkdir(parents=True)
        compiled = cache / "compiled" / name / "kernel.so"
        compiled.touch()
        os.utime(compiled, (used_s, month_ago))
        os.utime(cache / "parcels" / name, (used_s, used_s))
    shell(parcel.unpack_command, home, parcel.archive)
    assert {path.name for path in (cache / "parcels").iterdir()} == {"used", parcel.digest}
    assert [path.parent.name for path in (cache / "compiled").rglob("*.so")] == ["used"]


def test_files_have_the_forms_their_readers_want() -> None:
    plan = gpu_plan()
    one = prepare(plan, Attempt("r"), UserVariables({"MINE": "x y"}, {}))[0]
    shared = one.parcels[1].files
    lines = one.files["node-0.env"].splitlines()
    assert lines[0] == f"# plan {plan.digest()}"
    assert "MINE=x y" in lines
    assert next(line for line in lines if line.startswith("NCCL_IB_HCA=")).startswith("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1")
    assert "NCCL_SOCKET_IFNAME==eth0" in lines
    assert "GLOO_SOCKET_IFNAME=eth0" in lines
    assert not any(line.startswith("NCCL_NET=") for line in lines)
    assert shared["plan.json"] == plan.to_json()


def test_model_of_ones_own_is_read_beside_the_job_and_sent(tmp_path: Path) -> None:
    plan = cpu_plan(model={**vars(bed_job().model), "factory": "mine.py:build"})
    (tmp_path / "mine.py").write_text("def build(layers, job): ...", encoding="utf-8")
    one = prepare(plan, Attempt("r"), read_user_variables(plan.job, {}, tmp_path))[0]
    assert one.parcels[1].files["mine.py"] == "def build(layers, job): ..."
    with pytest.raises(HolmesError, match=r"model\.factory: .*mine\.py: cannot be read: No such file"):
        read_user_variables(plan.job, {}, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(layers, job):\n    return (\n", r"mine\.py, line 2: '\(' was never closed"),
        ("def build(layers, job)\n    ...\n", r"mine\.py, line 1: expected ':'"),
        ("x = 1\0", r"mine\.py.*: source code (string )?cannot contain null bytes"),
    ],
)
def test_a_model_that_is_not_python_is_refused_where_it_is_read(
    tmp_path: Path, text: str, said: str, recwarn: pytest.WarningsRecorder
) -> None:
    plan = cpu_plan(model={**vars(bed_job().model), "factory": "mine.py:build"})
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(HolmesError, match=said) as refused:
        read_user_variables(plan.job, {}, tmp_path)
    assert refused.value.exit_code == 2
    (tmp_path / "mine.py").write_text("raise SystemExit('\\d runs on the hosts alone')", encoding="utf-8")
    assert list(read_user_variables(plan.job, {}, tmp_path).files) == ["mine.py"]
    assert not recwarn.list


def test_model_at_an_absolute_path_is_on_the_hosts_already(tmp_path: Path) -> None:
    plan = cpu_plan(model={**vars(bed_job().model), "factory": "/shared/mine.py:build"})
    assert read_user_variables(plan.job, {}, tmp_path).files == {}


def test_variable_of_the_plan_is_not_the_users() -> None:
    with pytest.raises(HolmesError, match="launch sets GLOO_SOCKET_IFNAME, which the plan sets to 'eth0' on a1"):
        prepare(PLAN, Attempt("r"), UserVariables({"GLOO_SOCKET_IFNAME": "lo"}, {}))


def test_activation_runs_before_python_in_a_login_shell() -> None:
    one = bundle(Access(activate="export MARK=on", python="/bin/sh"))
    assert one.start_command.startswith("exec bash -lc 'export MARK=on && umask 077 && cd ")


def test_archive_of_the_same_files_has_the_same_bytes() -> None:
    files = {"b": "2", "a/c": "é"}
    assert archive(files) == archive(dict(reversed(files.items())))
    with tarfile.open(fileobj=io.BytesIO(archive(files))) as tar:
        assert [(entry.name, entry.mode) for entry in tar] == [("a/c", 0o600), ("b", 0o600)]
