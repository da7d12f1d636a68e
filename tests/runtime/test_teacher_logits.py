"""The file of a teacher's logits, and a run that learns from them, against the transformers library."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holmes_cli.commands.data_command import data_command
from holmes_core.errors import HolmesError
from holmes_runtime import teacher_logits
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import TeacherSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.data.samples import make_samples
from holmes_runtime.data.tokens import TokenPart
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.checkpoint_files.description import Counters, changed_settings, describe
from holmes_runtime.node.data_files.stored_bytes import FileBytes
from holmes_runtime.node.data_files.teacher_file import TeacherRows, read_teacher
from holmes_runtime.node.data_files.text import source_files
from holmes_runtime.node.data_files.token_file import TokenFileWriter, read_index
from holmes_runtime.published.first_weights import load_first_weights
from holmes_runtime.teacher_logits import write_teacher_logits
from holmes_runtime.trainer import Trainer

from .drawn_teacher import write_logits
from .launched_runs import make_config
from .parity_cells import GPT, LLAMA
from .test_distilled_loss import expected_loss

transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lone_group")]

SEQ, VOCAB, TOP = 32, 300, 9
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights that are large enough for it to prefer some tokens."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    for parameter in model.parameters():
        parameter.data.mul_(3)
    folder = tmp_path_factory.mktemp("teacher")
    model.save_pretrained(folder)
    return folder


def log_probabilities(teacher: Path, tokens: list[int]) -> Tensor:
    """Those of the transformers library for the token after each of `tokens`: (tokens, vocabulary)."""
    model = transformers.LlamaForCausalLM.from_pretrained(teacher)
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.float().log_softmax(1)


def soft_targets(path: Path, start: int, stop: int) -> tuple[Tensor, Tensor]:
    index = read_index(path)
    part = TokenPart(str(path), FileBytes(path), index.token_type, teacher=TeacherRows(read_teacher(path)))
    return part.soft_targets(start, stop)


def plain_tokens(folder: Path, count: int = 5 * SEQ + 3) -> Path:
    with TokenFileWriter(folder / "tokens.bin", "uint16") as writer:
        writer.add((place * place + 7) % VOCAB for place in range(count))
    return folder / "tokens.bin"


def write(path: Path, folder: Path, seq_length: int | None = SEQ, weight_bytes: int | None = None) -> int:
    written = write_teacher_logits(path, folder, TOP, seq_length, lambda *_: None, weight_bytes)
    return written.num_parts


@pytest.mark.parametrize("weight_bytes", [None, 1], ids=["whole", "layer by layer"])
def test_the_highest_logits_are_those_of_the_transformers_library(
    weight_bytes: int | None, teacher: Path, tmp_path: Path
) -> None:
    path = plain_tokens(tmp_path)

    num_parts = write(path, teacher, weight_bytes=weight_bytes)

    assert num_parts == (1 if weight_bytes is None else SIZES["num_hidden_layers"])
    tokens = TokenPart("tokens", FileBytes(path), "uint16").read(0, 5 * SEQ)
    for sequence in range(5):
        places = range(sequence * SEQ, (sequence + 1) * SEQ)
        expected = log_probabilities(teacher, tokens[places.start : places.stop].tolist())
        likeliest, logarithms = soft_targets(path, places.start, places.stop)
        torch.testing.assert_close(logarithms, expected.topk(TOP, 1).values, rtol=1e-3, atol=1e-3)  # float16
        torch.testing.assert_close(expected.gather(1, likeliest.long()), logarithms, rtol=1e-3, atol=1e-3)


def test_a_teacher_reads_each_packed_example_alone(teacher: Path, tmp_path: Path) -> None:
    examples = [("two and two", " is four"), ("hello", " world, how are"), ("a", "b")]
    lines = (json.dumps({"prompt": prompt, "completion": text}) + "\n" for prompt, text in examples)
    (tmp_path / "chats.jsonl").write_text("".join(lines))
    data_command(tmp_path / "chats.jsonl", tmp_path / "chats.bin", seq_length=SEQ)

    data_command(tmp_path / "chats.bin", teacher=teacher, top=TOP)

    index = read_index(tmp_path / "chats.bin")
    tokens = TokenPart("chats", FileBytes(index.path), index.token_type).read(0, index.num_tokens).tolist()
    read = [~token if token < 0 else token for token in tokens]
    for prompt, text in examples:
        wanted = [*f"{prompt}{text}".encode()]
        (first,) = (place for place in range(len(read)) if read[place : place + len(wanted)] == wanted)
        expected = log_probabilities(teacher, wanted)
        _, logarithms = soft_targets(index.path, first, first + len(wanted))
        torch.testing.assert_close(logarithms, expected.topk(TOP, 1).values, rtol=1e-3, atol=1e-3)


def taught(path: Path, settings: TeacherSettings | None, **changes: Any) -> RunConfig:
    shape = replace(
        changes.pop("shape", GPT), vocab_size=changes.pop("vocab_size", VOCAB), seq_length=SEQ, num_layers=2
    )
    return make_config(path, cuts=(0, 2), model=shape, teacher=settings, grad_clip=None, **changes)


def make_trainer(config: RunConfig) -> Trainer:
    corpus = load_corpus(config.data, "here", SEQ, config.model.vocab_size)
    return Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))


def test_a_step_has_the_mixed_loss_and_its_gradients_and_evaluations_cross_entropy_alone(tmp_path: Path) -> None:
    path, settings = plain_tokens(tmp_path, 20 * SEQ + 1), TeacherSettings(0.75, 2.0)
    write_logits(path, SEQ, TOP, VOCAB)
    trainer = make_trainer(taught(path, settings, steps=1, validation_fraction=0.4))
    (module,) = trainer.pipeline._modules
    batch = trainer.training.batch(0, range(8))
    soft = trainer.training.soft_targets(0, range(8))
    with torch.no_grad():
        validation = module(trainer.validation.batch(0, range(8))[:, :-1])
    hard = functional.cross_entropy(validation.flatten(0, 1), trainer.validation.batch(0, range(8))[:, 1:].flatten())
    expected = expected_loss(module(batch[:, :-1]), batch[:, 1:], soft, settings)
    expected.backward()  # type: ignore[no-untyped-call]
    wanted = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()

    evaluated = trainer.evaluate(1, 0)
    result = trainer.step(0)

    assert evaluated == pytest.approx(hard.item(), rel=1e-5)
    assert result.loss == pytest.approx(expected.item(), rel=1e-5)
    norm = torch.stack([gradient.pow(2).sum() for gradient in wanted]).sum().sqrt()
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)


def test_a_student_comes_to_its_teachers_probabilities(teacher: Path, tmp_path: Path) -> None:
    path = plain_tokens(tmp_path, 8 * SEQ + 1)
    write(path, teacher)
    trainer = make_trainer(taught(path, TeacherSettings(1.0), shape=LLAMA, steps=60, learning_rate=1e-2))

    losses = [trainer.step(step).loss or 0.0 for step in range(60)]

    assert 0 < losses[-1] < losses[0] / 4


def test_of_a_blend_each_sample_has_the_fewest_logits_of_any_source_and_none_of_padding(tmp_path: Path) -> None:
    paths = []
    for name, top in (("a", 4), ("b", 6)):
        (tmp_path / name).mkdir()
        paths.append(plain_tokens(tmp_path / name))
        write_logits(paths[-1], SEQ, top, VOCAB + 40, seed=top)
    config = taught(paths[0], TeacherSettings(0.5))
    corpora = [load_corpus(replace(config.data, path=str(path)), "here", SEQ, VOCAB) for path in paths]
    source = config.data.sources[0]
    blend = replace(config.data, path=tuple(replace(source, path=str(path)) for path in paths))
    samples = make_samples(replace(config, data=blend), tuple(corpus.training[0] for corpus in corpora), key="1")

    found = samples.soft_targets(0, range(8))

    assert found.tokens.shape == found.log_probabilities.shape == (8, SEQ, 4)
    assert int(found.tokens.max()) < VOCAB
    is_padding = found.log_probabilities == -torch.inf
    assert 0.02 < is_padding.float().mean().item() < 0.3
    assert found.tokens[is_padding].eq(0).all()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "another text": (lambda path: path.write_bytes(path.read_bytes()[::-1]), "other tokens than"),
    "no teacher": (lambda path: path.with_suffix(".teacher").unlink(), "is missing"),
    "cut": (lambda path: cut(path.with_suffix(".teacher"), -1), "bytes, but its header says"),
    "another file": (lambda path: path.with_suffix(".teacher").write_bytes(bytes(200)), "does not hold logits"),
    "no header": (lambda path: cut(path.with_suffix(".teacher"), 30), "does not hold logits"),
}


def cut(path: Path, stop: int) -> None:
    path.write_bytes(path.read_bytes()[:stop])


@pytest.mark.parametrize("name", BROKEN)
def test_a_teachers_file_that_does_not_fit_is_refused_before_a_step(name: str, tmp_path: Path) -> None:
    path, (change, reason) = plain_tokens(tmp_path), BROKEN[name]
    write_logits(path, SEQ, TOP, VOCAB)
    change(path)

    with pytest.raises(ValueError, match=reason):
        make_trainer(taught(path, TeacherSettings(0.5)))


def test_tokens_that_the_model_does_not_have_and_numbers_that_are_none_name_file_and_offset(tmp_path: Path) -> None:
    path = plain_tokens(tmp_path)
    file = write_logits(path, SEQ, TOP, VOCAB + 2000)
    with pytest.raises(ValueError, match="must have the same tokenizer as the model"):
        make_trainer(taught(path, TeacherSettings(0.5)))
    content = bytearray(file.path.read_bytes())
    content[-2:] = b"\xff\x7f"  # a float16 that is no number
    file.path.write_bytes(content)
    trainer = make_trainer(taught(path, TeacherSettings(0.5), vocab_size=VOCAB + 2000))

    with pytest.raises(ValueError, match=rf"{path.name} after offset {5 * SEQ - 1} in tokens"):
        trainer.training.soft_targets(0, range(8))


def test_settings_under_which_a_teacher_read_other_sequences_are_refused(tmp_path: Path) -> None:
    path = plain_tokens(tmp_path)
    write_logits(path, SEQ, TOP, VOCAB)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("text " * 100)
    config = taught(path, TeacherSettings(0.5))

    for data, length, reason in (
        (replace(config.data, documents="separate"), SEQ, "joined documents"),
        (config.data, SEQ // 2, "sequences of 32 tokens"),
        (replace(config.data, path=str(tmp_path / "text")), SEQ, "is text"),
    ):
        with pytest.raises(ValueError, match=reason):
            load_corpus(data, "here", length, VOCAB)
    plain_tokens(tmp_path).rename(tmp_path / "more.bin")
    (tmp_path / "tokens.idx").rename(tmp_path / "more.idx")
    plain_tokens(tmp_path)
    with pytest.raises(ValueError, match="name each file as a source"):
        load_corpus(replace(config.data, path=str(tmp_path), pattern="*.bin"), "here", SEQ, VOCAB)


def test_what_a_teacher_cannot_read_is_refused_and_leaves_nothing(teacher: Path, tmp_path: Path) -> None:
    path = plain_tokens(tmp_path)
    large = tmp_path / "large.bin"
    with TokenFileWriter(large, "uint16") as writer:
        writer.add([VOCAB] * 100)
    before = [path, large, path.with_suffix(".idx"), large.with_suffix(".idx")]

    for tokens, options, reason in (
        (path, {"top": TOP}, "--seq-length"),
        (path, {"seq_length": SEQ, "top": VOCAB + 1}, "--top 301"),
        (path, {"seq_length": 10 * SEQ, "top": TOP}, "a sequence needs 321"),
        (large, {"seq_length": SEQ, "top": TOP}, "the teacher has 300"),
        (tmp_path / "none.bin", {"seq_length": SEQ, "top": TOP}, "not a token file"),
        (path, {"seq_length": SEQ, "output": tmp_path / "x.bin"}, "--output is for text"),
    ):
        with pytest.raises(HolmesError, match=reason):
            data_command(tokens, teacher=teacher, **options)
    (tmp_path / "no_weights").mkdir()
    (tmp_path / "no_weights" / "config.json").write_bytes((teacher / "config.json").read_bytes())
    with pytest.raises(HolmesError, match=r"model\.safetensors") as found:
        data_command(path, teacher=tmp_path / "no_weights", seq_length=SEQ, top=TOP)
    assert found.value.exit_code == 2
    with pytest.raises(HolmesError, match=r"config\.json"):
        data_command(path, teacher=tmp_path, seq_length=SEQ, top=TOP)

    assert {*tmp_path.iterdir()} == {*before, tmp_path / "no_weights"}


def test_the_weights_of_one_part_are_in_memory_at_a_time(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[DecoderStage] = weakref.WeakSet()
    seen = []

    def load(*arguments: Any) -> None:
        gc.collect()
        seen.append(len(alive))
        load_first_weights(*arguments)

    class Watched(DecoderStage):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            alive.add(self)

    monkeypatch.setattr(teacher_logits, "DecoderStage", Watched)
    monkeypatch.setattr(teacher_logits, "load_first_weights", load)

    write(plain_tokens(tmp_path), teacher, weight_bytes=1)

    assert seen == [1, 1, 1]


def test_a_folder_of_tokens_has_the_same_files_with_a_teacher_and_while_one_is_written(tmp_path: Path) -> None:
    path = plain_tokens(tmp_path)
    write_logits(path, SEQ, TOP, VOCAB)
    for name in (".tokens.teacher.123", ".tokens.bin.77", ".tokens.idx.77"):
        (tmp_path / name).write_bytes(b"x")

    assert source_files(tmp_path, "*") == [path]
    config = taught(tmp_path, TeacherSettings(0.5))
    assert make_trainer(replace(config, data=replace(config.data, pattern="*"))).step(0).loss


def test_a_resume_under_another_teacher_says_so(tmp_path: Path) -> None:
    path = plain_tokens(tmp_path)
    saved, now = (
        describe(replace(taught(path, settings)), "digest", Counters(0, 0, 1.0, 0, 0))
        for settings in (TeacherSettings(0.5), TeacherSettings(0.5, 2.0))
    )
    never = describe(taught(path, None), "digest", Counters(0, 0, 1.0, 0, 0))
    before = replace(
        never, trained_with={key: never.trained_with[key] for key in never.trained_with if key != "teacher"}
    )

    assert changed_settings(saved, now) == ["teacher: weight 0.5, temperature 1 then, weight 0.5, temperature 2 now"]
    assert changed_settings(before, never) == []


def test_weights_that_make_no_numbers_are_refused(teacher: Path, tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(teacher)
    model.lm_head.weight.data[5] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    path = plain_tokens(tmp_path)

    with pytest.raises(ValueError, match="are not finite"):
        write(path, tmp_path / "broken")

    assert not path.with_suffix(".teacher").exists()
