"""`holmes import`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import yaml
from pydantic import TypeAdapter

from holmes_cli.commands.model_command import LONGEST, section_of
from holmes_cli.job_overrides import overridden
from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import out, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.model import PRESETS
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_yaml
from holmes_core.records.record_file import write_atomically
from holmes_core.records.trainer_settings import TrainerName
from holmes_core.trainers.command_line import ACCELERATE, TrainerCommand, read_command, shown
from holmes_core.trainers.from_megatron import import_megatron
from holmes_core.trainers.from_scripts import import_script, settings_file
from holmes_core.trainers.from_torchtitan import import_torchtitan
from holmes_core.trainers.imported_job import ImportedJob, OptionRow
from holmes_runtime.config.bounded_file import read_json_object
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.node.published_files.architectures import CONFIG_FILE, read_shape

MAX_SETTINGS_BYTES = 2**20  # DeepSpeed's have a few thousand
_FIRST = ("model", "global_batch_size", "steps", "precision", "trainer", "parallel")  # in the file
_SIZES = ("num_layers", "hidden_size", "num_heads", "seq_length", "vocab_size")


def import_command(
    command: Annotated[str, typer.Argument(help="A trainer's whole command, in quotes; or a model's config.json.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="CONFIG|PRESET", help="The shape, where the command has none: config.json."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="NAME", help="megatron, torchtitan, deepspeed, accelerate or torch, if not recognized."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A key of job.yaml that the command does not give: steps=1000."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; never overwrites.")] = Path("job.yaml"),
) -> None:
    """Write job.yaml from the command of Megatron-LM or another trainer, or from a model's config.json."""
    if output.exists() or output.is_symlink():
        raise HolmesError(f"{output} exists", "choose another name with `-o`, or move that file away")
    if engine is not None and engine not in get_args(TrainerName):
        raise HolmesError(f"--engine {shown(engine)}: not known", f"there are {', '.join(get_args(TrainerName))}")
    if Path(command).name == CONFIG_FILE and not any(character.isspace() for character in command):
        sections = {"model": _model_section(command), "trainer": {"engine": engine or "accelerate"}}
        imported = ImportedJob(sections, ())
    else:
        imported = _of_command(command, engine)
    data: Any = dict(imported.data)
    if model is not None:
        data["model"] = _model_section(model) | data["model"]
    for override in overrides or ():
        data = overridden(data, override)
    _check_complete(data)
    data = {key: data[key] for key in _FIRST if key in data} | data
    text = _header(imported.rows) + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)
    job = parse(Job, parse_yaml(text, str(output)), "the command")
    write_atomically(output, text)
    _show(imported, job, output)


def _header(rows: Sequence[OptionRow]) -> str:
    """Return the comment at the top of job.yaml: all that the command had and this file has not."""
    gone = "; ".join(row.words for row in rows if row.fate == "decided" and not row.words.startswith("("))
    text = f"# By `holmes import`. Taken out of the command: {gone or 'nothing'}"
    return "".join(character if character.isprintable() else "?" for character in text) + "\n"


def _of_command(text: str, engine: str | None) -> ImportedJob:
    command = read_command(text)
    name = engine or _recognized(command)
    imported = _imported(command, name)
    script = Path(command.program[-1])
    trainer = imported.data["trainer"]
    if script.suffix != ".py" or script.is_absolute():
        trainer["folder"] = "~/"  # any folder will do
    elif script.is_file():
        trainer["folder"] = str(Path.cwd())
    return imported


def _recognized(command: TrainerCommand) -> TrainerName:
    """Return the engine that the command's program or options show. Raises HolmesError if none do."""
    names = {option.name for option in command.options}
    if "--tensor-model-parallel-size" in names or {"--num-layers", "--hidden-size"} <= names:
        return "megatron"
    if command.program[-1] == "torchtitan.train" or {"--module", "--config"} <= names:
        return "torchtitan"
    if command.starter == "deepspeed" or settings_file(command) is not None:
        return "deepspeed"
    if command.starter == ACCELERATE:
        return "accelerate"
    what = f"command: {shown(' '.join(command.program))}: not recognized as a trainer that is known"
    raise HolmesError(what, "name its engine, as in `--engine torch`, and its shape with `--model`")


def _imported(command: TrainerCommand, engine: TrainerName | str) -> ImportedJob:
    if engine == "megatron":
        return import_megatron(command)
    if engine == "torchtitan":
        return import_torchtitan(command)
    settings: Mapping[str, Any] = {}
    file = settings_file(command)
    if file is not None:
        try:
            settings = read_json_object(Path(file), MAX_SETTINGS_BYTES)
        except FileNotFoundError:
            hint = "import where that file is, or give its path from here"
            raise HolmesError(f"{shown(file)}: DeepSpeed's settings: no such file here", hint) from None
        except ValueError as error:
            raise HolmesError(f"DeepSpeed's settings: {error}", "correct that file") from None
    return import_script(command, TypeAdapter(TrainerName).validate_python(engine), settings)


def _model_section(text: str) -> dict[str, object]:
    """Return the section `model` of a preset, or of a published model by its folder or config.json."""
    if text in PRESETS:
        return {"preset": text}
    path = Path(text)
    try:
        shape = read_shape(path.parent if path.name == CONFIG_FILE else path)
    except ValueError as error:
        hint = f"name config.json of a model in docs/models.md, or one of {', '.join(PRESETS)}"
        raise HolmesError(str(error), hint) from None
    return section_of(shape) | {"seq_length": min(LONGEST, shape.seq_length)}


def _check_complete(data: Any) -> None:
    """Raise HolmesError naming every key that a job needs and nothing gave."""
    section = data.get("model") if isinstance(data, dict) else None
    if not isinstance(section, dict):
        return
    filled = {**PRESETS.get(str(section.get("preset")), {}), **section}
    missing = [f"model.{key}" for key in _SIZES if key not in filled]
    missing += [key for key in ("global_batch_size", "steps") if key not in data]
    if missing:
        sets = " ".join(f"--set {key}=NUMBER" for key in missing)
        hint = f"add {sets}" + ("; or `--model config.json` for the shape" if missing[0].startswith("model.") else "")
        raise HolmesError(f"the command does not give {', '.join(missing)}", hint)


def _show(imported: ImportedJob, job: Job, output: Path) -> None:
    shape = job.model
    billions = stage_parameters(shape, shape.num_layers, is_first=True, is_last=True) / 1e9
    print_out(
        f"job: {output}: engine {job.engine}, {shape.family}, {shape.num_layers} layers, {billions:.2f} B parameters"
    )
    rows = [(row.words, row.fate, row.note or "-") for row in imported.rows if row.fate != "kept"]
    if rows:
        out.print(fitted_table(("option", "read as", "key, or reason"), rows, out.width, unwrapped=("read as",)))
        print_out(
            "decided: taken out of the command, as a launch adds it from the plan; all others stay in the command"
        )
        kept_words = ", ".join(row.words for row in imported.rows if row.fate == "kept") or "nothing"
        print_out(f"kept in the command, and no matter to the plan: {kept_words}")
    fixed = job.parallel.model_dump(mode="json", exclude_none=True)
    if fixed:
        print_out(f"fixed in parallel: {_flow(fixed)}")
    trainer = job.trainer
    if trainer is not None and not trainer.command:
        print_out("trainer.command: missing, so that the job is only planned; write the command there to launch it")
    elif trainer is not None and "folder" not in trainer.model_fields_set:
        print_out("trainer.folder: set it to the folder in which the command runs, at the same path on every host")
    print_out(f"next: holmes plan {output}")
    free = set(imported.data.get("parallel") or ()) - set(imported.set_by_command)
    kept = {key: value for key, value in fixed.items() if key not in free}
    if free:
        own = shlex.quote(f"parallel={_flow(kept)}")
        print_out(f"and with Holmes's own choices: holmes plan {output} --set {own} --compare plan.json -o own.json")


def _flow(values: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=True, width=10**6).strip()
