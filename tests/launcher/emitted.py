"""What `holmes emit` writes for one plan, kept in tests/data/emit: `python -m tests.launcher.emitted` writes it anew.

Read the diff. The plan is kept, too, so that the files change only with what emits them.
"""

from __future__ import annotations

from pathlib import Path

from holmes_core.records.access import Access, Container
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_runtime.config.node_config import TRAINER_FILE
from launcher.emit.emit import FORMATS, emit
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import with_access
from tests.launcher.trainer_job import CODE, trainer_plan
from tests.planner.fleets import gpt_7b, gpu_inventory, plan_for

FOLDER = Path(__file__).parent.parent / "data" / "emit"
VARIABLES = UserVariables({"HF_HOME": "/data/it's $HOME"}, {"TOKEN": "s3cr3t\n"}, {"mine.py": "def build(): ...\n"})
CONTAINER = Container(engine="docker", image="nvcr.io/pytorch:26.07", options=("--volume", "/data:/data"))
# Sources of the runtime, what is no Holmes format of its own, and what a person brought along.
NOT_KEPT = ("holmes_runtime/", "plan.json", "run_config.json", "secret-", "mine.py", "files.yaml")


def kept_plan() -> Plan:
    """A plan of two clusters on GPUs, with CPUs, an activation line on one host and a container on the other."""
    return read_file(Plan, FOLDER / "plan.json")


def suited(plan: Plan, form: str) -> Plan:
    """The plan, for pods with every node in a container."""
    return with_access(plan, Access(container=CONTAINER)) if form == "kubernetes" else plan


def emitted(plan: Plan, form: str) -> dict[str, str]:
    """The files of the format that are kept."""
    files = emit(plan, form, VARIABLES)
    return {name: text for name, text in files.items() if not name.startswith(NOT_KEPT)}


def emitted_trainer() -> str:
    """The configuration of ranks that run a trainer's own command, by the kept plan."""
    return emit(trainer_plan(kept_plan()), "torchrun", CODE)[TRAINER_FILE]


def make_plan() -> Plan:
    """The plan that is kept."""
    inventory = gpu_inventory([1, 1], gpus_per_host=4)
    first, second = inventory.hosts
    near = ("0-15,32-47", "0-15,32-47", "16-31,48-63", "16-31,48-63")
    gpus = tuple(gpu.model_copy(update={"cpus": cpus}) for gpu, cpus in zip(first.gpus, near, strict=True))
    hosts = (
        first.model_copy(update={"gpus": gpus, "access": Access(python="/opt/py", activate="source /opt/on")}),
        second.model_copy(update={"gpus": gpus, "access": Access(container=CONTAINER)}),
    )
    shape = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}
    job = gpt_7b(
        model=shape,
        global_batch_size=64,
        parallel={"pp": 2, "tp": 2, "dp": 2},
        checkpoint={"path": "/shared/checkpoints", "every_steps": 10},
    )
    return plan_for(inventory.model_copy(update={"hosts": hosts}), job)


def main() -> None:
    """Write plan and files anew; the plan only where there is none."""
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / "plan.json").exists():
        (FOLDER / "plan.json").write_text(make_plan().to_json(), encoding="utf-8")
    for form in FORMATS:
        (FOLDER / form).mkdir(exist_ok=True)
        for old in (FOLDER / form).iterdir():
            old.unlink()
        for name, text in emitted(suited(kept_plan(), form), form).items():
            (FOLDER / form / name).write_text(text, encoding="utf-8")
    (FOLDER / "trainer").mkdir(exist_ok=True)
    (FOLDER / "trainer" / TRAINER_FILE).write_text(emitted_trainer(), encoding="utf-8")


if __name__ == "__main__":
    main()
