"""Read a plan for commands that start it: unchanged, not stale, and trusted."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from holmes_cli.job_overrides import as_options, read_job
from holmes_cli.screen.show_origin import ForeignFile, confirm_foreign
from holmes_cli.screen.terminal import print_err
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory, refuse_sketch
from holmes_core.records.plan import IslandsPlan, Plan, SourceFile
from holmes_core.records.record import FileRecord
from holmes_core.records.record_file import SignedRecord, read_any, read_signed
from launcher.prepare.code_folder import content_digest
from launcher.prepare.prepare import refuse_prediction
from launcher.prepare.trusted_parts import brought_by_inventory, brought_by_islands, brought_by_plan
from launcher.prepare.user_variables import brought_code

AnyPlan = Plan | IslandsPlan
PLAN_CURRENT = "plan-current"
SHOWN_DIGEST = 15  # characters that tell one from another


def read_launchable(plan: Path, trust: Collection[str], may_be_stale: bool) -> tuple[AnyPlan, Inventory | None]:
    """Return the plan, of islands or not, and the inventory it was made from if that file still exists.

    Asks before it takes files that this user did not make here, unless `trust` has their digest. Raises HolmesError for
    a plan that was changed or not trusted, that is stale and may not be, or that no command of other software trains.
    """
    signed = read_any((Plan, IslandsPlan), plan)
    record = signed.record
    assert isinstance(record, Plan | IslandsPlan)
    refuse_prediction(record)
    found = _inventory(plan, record)
    if found is not None:
        refuse_sketch(found.record, source_file(plan, record.inventory))
    if not may_be_stale:
        _refuse_stale(plan, record, found)
    confirm_foreign(_foreign(plan, record, signed.is_own, found), trust)
    if record.job_source.overrides:
        print_err(f"planned with {as_options(record.job_source.overrides)}")
    return record, found.record if found else None


def _inventory(path: Path, plan: AnyPlan) -> SignedRecord[Inventory] | None:
    """Return the inventory the plan was made from, if the file still exists."""
    file = source_file(path, plan.inventory)
    return read_signed(Inventory, file) if file.exists() else None


def _foreign(
    path: Path, plan: AnyPlan, is_own: bool, inventory: SignedRecord[Inventory] | None
) -> tuple[ForeignFile, ...]:
    """Return the files that this user did not make here. A plan vouches for the inventory it names by digest."""
    source, files = plan.inventory, []
    named = inventory is not None and inventory.record.source_digest() == source.digest
    by_inventory = brought_by_inventory(inventory.record) if inventory is not None else ()
    if not is_own:
        by_plan = brought_by_islands(plan) if isinstance(plan, IslandsPlan) else brought_by_plan(plan)
        brings = (*by_plan, *(by_inventory if named else ()))
        files.append(ForeignFile(path, _digest(path, plan), tuple(dict.fromkeys(brings))))
    if inventory is not None and not named and not inventory.is_own:
        files.append(ForeignFile(source_file(path, source), inventory.record.digest(), by_inventory))
    return tuple(files)


def _digest(path: Path, plan: AnyPlan) -> str:
    """Return the digest of a foreign plan and of the code it would send, which lies in files of its own."""
    code = brought_code(plan.job, source_file(path, plan.job_source).parent)
    return content_digest({**code, "": plan.digest()}) if code else plan.digest()


def _refuse_stale(path: Path, plan: AnyPlan, inventory: SignedRecord[Inventory] | None) -> None:
    """Raise HolmesError if the inventory or the job has changed since the plan was made from it."""
    if inventory is not None:
        _compare(path, source_file(path, plan.inventory), inventory.record, plan.inventory)
    job = source_file(path, plan.job_source)
    if job.exists():
        _compare(path, job, read_job(job, plan.job_source.overrides), plan.job_source)


def source_file(path: Path, source: SourceFile) -> Path:
    """Return the path of a file that the plan at `path` was made from."""
    return path.absolute().parent / source.path


def _compare(path: Path, file: Path, record: FileRecord, source: SourceFile) -> None:
    digest = record.source_digest()
    if digest != source.digest:
        shown, now = source.digest[:SHOWN_DIGEST], digest[:SHOWN_DIGEST]
        anew = f"holmes plan job.yaml {as_options(source.overrides)}".rstrip()
        raise HolmesError(
            f"{path}: stale: {file} has changed since (the plan is from {shown}, it is now {now})",
            f"plan again: `{anew}`; or launch it as it is with `--force {PLAN_CURRENT}`",
        )
