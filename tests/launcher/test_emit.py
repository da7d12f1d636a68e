"""What is emitted: the kept files byte for byte, each with the plan's digest, and nothing in it taken for a command."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access, Container
from holmes_core.records.plan import Plan
from holmes_runtime.node.start_rank import find_place, rank_environment
from launcher.emit.emit import FORMATS, START, emit
from launcher.emit.write_folder import write_folder
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.emitted import FOLDER, VARIABLES, emitted, kept_plan, suited
from tests.launcher.plans import cpu_plan, gpu_plan, with_access
from tests.launcher.test_bundle import nasty, one_line, words
from tests.seeds import EXPENSIVE

NOTHING = UserVariables({}, {})
PLAN = cpu_plan()
RUNS_SHELLS = settings(EXPENSIVE, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Not there yet; its own name would run something if it were taken for words of a command."""
    yield tmp_path / 'it\'s "$(touch canary)" *é'
    assert list(tmp_path.rglob("canary")) == []


def written(folder: Path, plan: Plan, form: str = "torchrun", variables: UserVariables = NOTHING) -> Path:
    """The emitted folder, without the runtime's sources."""
    files = emit(plan, form, variables)
    for old in sorted(folder.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    write_folder(folder, {name: text for name, text in files.items() if not name.startswith("holmes_runtime/")})
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The start script with these arguments, and programs of `folder/bin` before others."""
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), **environment}
    line = [f"{folder}/start-rank.sh", *arguments]
    done = subprocess.run(line, capture_output=True, env=environment, cwd="/", check=False)
    said = [text.decode() for text in (done.stdout, done.stderr)]  # with every \r as it was said
    return subprocess.CompletedProcess(line, done.returncode, *said)


def stub(folder: Path, name: str, script: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "bin" / name).chmod(0o755)


SHOW = 'printf "%s\\0" "$PWD" "$HOLMES_HOST" "$LOCAL_RANK" "$@"'


@pytest.mark.parametrize("form", FORMATS)
def test_files_are_those_that_are_kept(form: str) -> None:
    kept = {file.name: file.read_text(encoding="utf-8") for file in (FOLDER / form).iterdir()}
    assert emitted(suited(kept_plan(), form), form) == kept


@pytest.mark.parametrize("form", FORMATS)
def test_every_file_that_may_have_comments_starts_with_the_digest(form: str) -> None:
    for plan in (suited(kept_plan(), form), suited(PLAN, form)):
        for name, text in emitted(plan, form).items():
            lines = text.split("\n")
            assert lines[1 if lines[0] == "#!/bin/sh" else 0] == f"# plan {plan.digest()}", name


def test_every_format_says_what_to_do_with_it() -> None:
    assert set(START) == set(FORMATS)


def test_what_is_only_to_be_read_has_neither_secrets_nor_the_runtime() -> None:
    names = set(emit(kept_plan(), "files", VARIABLES))
    assert names == {"ranks", "hostfile", "node-0.env", "node-1.env", "commands"}


@pytest.mark.parametrize("form", ["torchrun", "slurm", "mpi"])
def test_what_starts_ranks_has_all_that_a_launch_sends(form: str) -> None:
    files = emit(kept_plan(), form, VARIABLES)
    sent = prepare(kept_plan(), Attempt("r", resume=True, from_scratch=True), VARIABLES)[0]
    shared = {**sent.parcels[0].files, **sent.parcels[1].files}
    assert {name: files[name] for name in shared} == shared
    assert files["secret-TOKEN"] == sent.files["secret-TOKEN"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["a b", "a,b", "$(touch canary)", "a\nb", "", "-a", "a[1-2]"])
def test_a_name_that_has_no_way_to_be_written_is_refused(form: str, name: str) -> None:
    def renamed(entries: tuple[Any, ...], key: str) -> tuple[Any, ...]:
        return tuple(each.model_copy(update={key: name}) if each.host == "a1" else each for each in entries)

    update = {"nodes": renamed(PLAN.nodes, "host"), "ranks": renamed(PLAN.ranks, "host")}
    with pytest.raises(HolmesError, match=f"--to {form}: host .* cannot be written in this format"):
        emit(PLAN.model_copy(update=update), form, NOTHING)
    with pytest.raises(HolmesError, match=r"cluster .* cannot be written in this format"):
        emit(PLAN.model_copy(update={"nodes": renamed(PLAN.nodes, "cluster")}), form, NOTHING)
    unchecked = Access(transport="slurm").model_copy(update={"address": name or " "})  # a record refuses most of them
    with pytest.raises(HolmesError, match=r"Slurm's name .* cannot be written in this format"):
        emit(with_access(PLAN, unchecked), form, NOTHING)


def reordered(plan: Plan, hosts: str) -> Plan:
    """The plan with its ranks on these hosts, each named by one letter, counted up on each."""
    ranks = [
        rank.model_copy(update={"host": f"{host}1", "local_rank": count, "gpu": count})
        for rank, host in zip(plan.ranks, hosts, strict=True)
        for count in (hosts[: rank.rank].count(host),)
    ]
    return plan.model_copy(update={"ranks": tuple(ranks)})


def test_only_bare_torchrun_lines_cannot_have_ranks_in_another_order() -> None:
    mixed = reordered(gpu_plan(), "abab")
    with pytest.raises(HolmesError, match="--to files: rank 1 is local rank 0 of b1, torchrun would start it as"):
        emit(mixed, "files", NOTHING)
    assert "-m holmes_runtime.node.start_rank" in emit(mixed, "torchrun", NOTHING)["commands"]
    assert emit(mixed, "slurm", NOTHING)["slurm.hostfile"].split("\n")[1:] == ["a1", "b1", "a1", "b1", ""]
    assert emit(mixed, "mpi", NOTHING)["sequence"].split("\n")[1:] == ["a1", "b1", "a1", "b1", ""]


@pytest.mark.parametrize("form", FORMATS)
def test_a_plan_whose_ranks_are_not_those_of_its_nodes_is_refused(form: str) -> None:
    swapped = gpu_plan()
    first, second, *others = swapped.ranks
    ranks = (first.model_copy(update={"local_rank": 1}), second.model_copy(update={"local_rank": 0}), *others)
    for plan in (
        swapped.model_copy(update={"ranks": ranks}),
        reordered(gpu_plan(), "aaab"),
        reordered(gpu_plan(), "aacc"),
    ):
        with pytest.raises(HolmesError, match=f"--to {form}: the ranks of the plan are not those of its nodes"):
            emit(plan, form, NOTHING)


def test_nodes_of_unlike_numbers_of_gpus_are_components_of_their_own() -> None:
    plan = gpu_plan((2, 1))
    first, *others = plan.ranks
    uneven = plan.model_copy(update={"ranks": (first.model_copy(update={"gpu": 6}), *others)})
    files = emit(uneven, "slurm", NOTHING)
    assert "job.sbatch" not in files
    asked = [line for line in files["het.sbatch"].split("\n") if "--partition" in line]
    assert next(line.split("--gpus-per-node=")[1] for line in asked) == "7"
    assert len(asked) == len({(node.cluster, node.host == first.host) for node in plan.nodes})


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(HolmesError, match="--to helm: no format of that name"):
        emit(PLAN, "helm", NOTHING)


@RUNS_SHELLS
@given(root=st.sampled_from(("", "~")), python=one_line)
def test_python_of_hosts_yaml_is_one_word(folder: Path, root: str, python: str) -> None:
    done = run(written(folder, with_access(PLAN, Access(python=f"{root}/nowhere/{python}"))), HOLMES_HOST="a1")
    assert done.returncode in (126, 127)


@RUNS_SHELLS
@given(image=words | nasty, options=st.lists(words | nasty, max_size=3))
def test_image_and_options_reach_docker_as_they_are(folder: Path, image: str, options: list[str]) -> None:
    container = Container(engine="docker", image=image, options=tuple(options))
    written(folder, with_access(PLAN, Access(container=container)))
    stub(folder, "docker", 'printf "%s\\0" "$@"')
    said = run(folder, HOLMES_HOST="a1", SLURM_LOCALID="0").stdout.split("\0")[:-1]
    assert said[said.index("--workdir") + 1 :] == [
        str(folder), *options, image, "python3", "-m", "holmes_runtime.node.start_rank",
    ]  # fmt: skip
    assert f"{folder}:{folder}" in said
    assert said[2:6] == ["--env", "HOLMES_HOST", "--env", "LOCAL_RANK"]


def test_activation_comes_before_python_and_leaves_its_words_alone(folder: Path) -> None:
    access = Access(activate="export MARK=on; cd /", python="show")
    stub(written(folder, with_access(PLAN, access)), "show", f'{SHOW} "$MARK"')
    (folder / ".bash_profile").write_text(f"PATH='{folder}/bin':$PATH\n".replace("it's", "it'\\''s"), encoding="utf-8")
    said = run(folder, "show", "a  b", "$(touch canary)", HOLMES_HOST="a1", LOCAL_RANK="0").stdout.split("\0")
    assert said[:-1] == [str(folder), "a1", "0", "a  b", "$(touch canary)", "on"]


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"HOLMES_HOST": "b1", "LOCAL_RANK": "0"}, ("b1", "0")),
        ({"SLURMD_NODENAME": "b1", "SLURM_LOCALID": "1"}, ("b1", "1")),
        ({"HOLMES_HOST": "10.0.1.1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, ("b1", "1")),
        ({"HOLMES_HOST": "a1", "SLURMD_NODENAME": "b1", "LOCAL_RANK": ""}, ("a1", "")),
    ],
)
def test_start_script_finds_host_and_local_rank(
    folder: Path, environment: dict[str, str], found: tuple[str, str]
) -> None:
    stub(written(folder, with_access(gpu_plan(), Access(python="show"))), "show", SHOW)
    said = run(folder, **environment).stdout.split("\0")
    assert said[:-1] == [str(folder), *found, "-m", "holmes_runtime.node.start_rank"]


@pytest.mark.parametrize(
    ("name", "addresses"),
    [("b1", ""), ("b1.site.org", ""), ("other", "127.0.0.1 10.0.1.1")],
    ids=["name", "full", "ip"],
)
def test_start_script_finds_the_host_by_its_own_name_or_address(folder: Path, name: str, addresses: str) -> None:
    stub(written(folder, with_access(gpu_plan(), Access(python="show"))), "show", SHOW)
    stub(folder, "uname", f"echo {name}")
    stub(folder, "hostname", f"echo {addresses}")
    assert run(folder, LOCAL_RANK="0").stdout.split("\0")[1] == "b1"


def test_start_script_refuses_a_host_that_is_not_in_the_plan(folder: Path) -> None:
    for environment in ({"HOLMES_HOST": "*"}, {"SLURMD_NODENAME": "$(touch canary)"}):
        done = run(written(folder, gpu_plan()), LOCAL_RANK="0", **environment)
        assert done.returncode == 2
        assert "is not in the plan: set HOLMES_HOST to a host in the file ranks" in done.stderr


@RUNS_SHELLS
@given(value=one_line, secret=words | nasty)
def test_values_and_secrets_reach_the_rank_as_they_are(folder: Path, value: str, secret: str) -> None:
    variables = UserVariables({"MINE": value, "LOCAL_RANK": "7"}, {"TOKEN": secret})
    written(folder, gpu_plan(), variables=variables)
    found = rank_environment(folder, {"HOLMES_HOST": "b1", "LOCAL_RANK": "1", "MINE": "stale"})
    assert (found["MINE"], found["TOKEN"]) == (value, secret.rstrip("\n"))
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["3", "1", "4", "2"]
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", str(gpu_plan().job.master_port))
    assert found["NCCL_DEBUG_FILE"].startswith(f"{folder}/out/")


def test_a_rank_gets_what_a_launch_gives_it(folder: Path) -> None:
    plan = kept_plan()
    written(folder, plan, variables=VARIABLES)
    for bundle in prepare(plan, Attempt("r"), VARIABLES):
        host = bundle.node.host
        found = rank_environment(folder, {"HOLMES_HOST": host, "LOCAL_RANK": "0"})
        lines = [line for line in bundle.files[f"node-{bundle.node.node_rank}.env"].split("\n") if line[:1] not in "#"]
        assert dict(line.split("=", 1) for line in lines).items() <= found.items()
        assert found["TOKEN"] == "s3cr3t"


def test_every_rank_is_found_by_its_host_and_local_rank() -> None:
    table = emit(kept_plan(), "files", VARIABLES)["ranks"]
    for rank in kept_plan().ranks:
        assert find_place(table, rank.host, str(rank.local_rank))[0] == rank.rank
    for host, local_rank in (("a1", "9"), ("a1", "01"), ("c1", "0")):
        with pytest.raises(ValueError, match=f"host {host}, local rank '{local_rank}': the plan's local ranks"):
            find_place(table, host, local_rank)


@pytest.mark.parametrize(
    "environ", [{"HOLMES_HOST": "a1"}, {"LOCAL_RANK": "0"}, {"HOLMES_HOST": "", "LOCAL_RANK": "0"}]
)
def test_a_rank_that_nobody_started_right_is_refused(folder: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is not set: start ranks with start-rank\.sh"):
        rank_environment(folder, environ)


def test_reasons_stay_comments_whatever_they_say() -> None:
    first, *others = PLAN.nodes
    variable = first.environment[0].model_copy(update={"reason": "so\nEVIL=1\r\n\x0b"})
    nodes = (first.model_copy(update={"environment": (variable,)}), *others)
    plan = PLAN.model_copy(update={"nodes": nodes})
    lines = emit(plan, "files", NOTHING)["node-0.env"].split("\n")
    assert [line for line in lines if "EVIL" in line] == ["# so EVIL=1"]


def test_folder_is_private_and_whole(folder: Path) -> None:
    write_folder(folder, emit(kept_plan(), "slurm", VARIABLES))
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    runnable = {path.name for path in folder.iterdir() if path.is_file() and os.access(path, os.X_OK)}
    assert runnable >= {"start-rank.sh", "job.sbatch", "het.sbatch"}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def make_file(folder: Path) -> None:
    folder.touch()


def make_full(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine").touch()


def make_link(folder: Path) -> None:
    folder.symlink_to("/tmp")


@pytest.mark.parametrize("make", [make_file, make_full, make_link])
def test_folder_that_is_there_is_left_alone(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    before = folder.lstat()
    same = (before.st_ino, before.st_mode, before.st_mtime_ns)  # looking into a folder changes when it was last read
    with pytest.raises(HolmesError, match="already exists"):
        write_folder(folder, {"x": "y"})
    after = folder.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == same


def test_nothing_is_left_where_a_folder_cannot_be_written(folder: Path) -> None:
    with pytest.raises(HolmesError, match="cannot be written: File name too long"):
        write_folder(folder, {"x": "y", "n" * 300: "z"})
    assert list(folder.parent.iterdir()) == []
    with pytest.raises(HolmesError, match="cannot be written: No such file"):
        write_folder(folder / "in" / "none", {})
