"""`holmes model`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import TypeAdapter

from holmes_cli.screen.terminal import out, print_err
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_runtime.config.model_shape import ModelShape, stage_parameters
from holmes_runtime.node.data_files.document_tokens import TOKENIZER_FILE
from holmes_runtime.node.data_files.text import FileTokenizer
from holmes_runtime.node.published_files.architectures import read_shape
from holmes_runtime.node.published_files.check_published import PickledWeights, read_tensors

LONGEST = 8192  # tokens: published models often allow many times the length they are mostly trained at


def model_command(
    folder: Annotated[Path, typer.Argument(help="A model of the transformers library: config.json, .safetensors.")],
) -> None:
    """Print the lines of job.yaml for a published model: its shape, and its weights to start from."""
    try:
        published = read_shape(folder)
    except ValueError as error:
        hint = "name the folder of a Llama, Mistral, Mixtral, Qwen or GPT-2 that docs/models.md says is computed"
        raise HolmesError(str(error), hint) from None
    shape = replace(published, seq_length=min(LONGEST, published.seq_length))
    has_tensors = _has_tensors(folder, published)
    lines: dict[str, object] = {"model": section_of(shape)}
    if has_tensors:
        lines["weights"] = str(folder.absolute())
    tokenizer = folder / TOKENIZER_FILE
    if tokenizer.exists():
        lines["data"] = {"tokenizer": str(tokenizer.absolute())}
    out.print(yaml.safe_dump(lines, sort_keys=False), end="", markup=False, highlight=False, soft_wrap=True)
    billions = stage_parameters(shape, shape.num_layers, is_first=True, is_last=True) / 1e9
    print_err(f"{folder}: {billions:.2f} billion parameters")
    print_err(f"{folder}: {_tokenizer_sentence(tokenizer)}")
    next_step = "put this into job.yaml, to start from random weights: the folder holds no tensors"
    if "weights" in lines:
        place = "the folder at that path on every host"
        next_step = f"put this into job.yaml, and {place}; leave out `weights` to start from random ones"
    print_err(f"next: {next_step}")


def _tokenizer_sentence(path: Path) -> str:
    if not path.exists():
        return f"no {TOKENIZER_FILE}: tokenize text with the model's own, from where the model was published"
    try:
        tokenizer = FileTokenizer(str(path))
    except ModuleNotFoundError as error:
        return f"{error}, also to name the tokens at the borders of documents"
    except ValueError as error:
        raise HolmesError(str(error), "get the model's tokenizer again") from None
    begin, end = tokenizer.begin_of_document, tokenizer.end_of_document
    first = "begin without a token of their own" if begin is None else f"begin with token {begin}"
    last = "end without one, so that they run into one another" if end is None else f"end with token {end}"
    return f"documents {first} and {last}"


def _has_tensors(folder: Path, shape: ModelShape) -> bool:
    """Return True if there are tensors. Raises HolmesError if they are invalid or of another model than `shape`."""
    try:
        read_tensors(folder, shape)
    except PickledWeights as error:
        raise HolmesError(
            str(error),
            "get the model's .safetensors files, or have the transformers library write them: "
            "`model.save_pretrained(FOLDER)`",
            ANSWER_IS_NO,
        ) from None
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise HolmesError(str(error), "get the model's files again, complete and all of one model") from None
    return True


def section_of(shape: ModelShape) -> dict[str, object]:
    """Return the `model:` section of job.yaml for `shape`, without keys at their defaults."""
    said: dict[str, object] = TypeAdapter(ModelShape).dump_python(shape, exclude_defaults=True)
    return {"family": shape.family, **said}
