"""Training on packed conversations against each of them alone, with another library's account of what is predicted."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holmes_cli.commands.data_command import data_command
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.data_files.token_file import DocumentStarts, read_index
from holmes_runtime.trainer import Trainer

from .launched_runs import make_config
from .parity_cells import GPT, LLAMA

transformers: Any = pytest.importorskip("transformers")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lone_group")]

SEQ, COUNT = 192, 100
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == "assistant" %}{% generation %}{{ message.content }}<|im_end|>
{% endgeneration %}{% else %}{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WORDS = ["yes", "no", "the answer", "é", "數", "🙂", "1 + 1", "a\n\nb", "<|im_start|>", "tab\there", ""]
Labelled = tuple[tuple[int, ...], tuple[bool, ...]]
"""Tokens, and of each whether it is predicted."""


def make_tokenizer(folder: Path) -> Any:
    """Write a small byte-level tokenizer with a chat template into `folder`; return it as transformers reads it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    made.train_from_iterator(["the answer is yes, the other is no; system user assistant"] * 20, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[1], pad_token=SPECIAL[2], chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return fast


def draw_conversation(drawn: random.Random) -> list[dict[str, str]]:
    """With or without a system prompt, of one turn or several, of empty, odd and too long texts."""

    def text() -> str:
        return " ".join(drawn.choice(WORDS) for _ in range(drawn.choice((0, 1, 1, 3, 5) * 4 + (60,)))).strip()

    messages = [{"role": "system", "content": text()}] if drawn.random() < 0.5 else []
    for _ in range(drawn.randint(1, 3)):
        messages += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    return messages


def labelled(tokenizer: Any, messages: list[dict[str, str]]) -> Labelled:
    said = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    return tuple(said["input_ids"]), tuple(map(bool, said["assistant_masks"]))


def packed_examples(path: Path) -> list[Labelled]:
    """The examples of a packed file, padding left out."""
    index = read_index(path)
    corpus = load_corpus(make_config(path, documents="separate").data, "here", SEQ, 300)
    tokens = corpus.training[0].read(0, index.num_tokens)
    bounds = [*DocumentStarts(index), index.num_tokens]
    parts = [tokens[start:stop] for start, stop in pairwise(bounds)]
    return [
        (tuple(torch.where(part < 0, ~part, part).tolist()), tuple((part >= 0).tolist()))
        for part in parts
        if (part >= 0).any()
    ]


def reference(stage: DecoderStage, examples: list[Labelled]) -> Tensor:
    """The mean loss over the predicted tokens of all examples, each of which the model reads alone."""
    losses, count = [], 0
    for tokens, predicted in examples:
        padded = torch.tensor([[*tokens, *[0] * (SEQ + 1 - len(tokens))]])
        logits = stage(padded[:, :-1])[0]
        known = torch.tensor([*predicted[1:], *[False] * (SEQ + 1 - len(tokens))])
        targets = padded[0, 1:].masked_fill(~known, -100)
        losses.append(functional.cross_entropy(logits, targets, reduction="sum", ignore_index=-100))
        count += int(known.sum())
    return torch.stack(losses).sum() / count


@pytest.mark.parametrize("shape", [GPT, replace(LLAMA, qk_norm=True)], ids=["gpt", "llama"])
def test_packed_conversations_have_the_loss_and_gradients_of_each_alone(shape: Any, tmp_path: Path) -> None:
    tokenizer, drawn = make_tokenizer(tmp_path), random.Random(5)
    conversations = [draw_conversation(drawn) for _ in range(COUNT)]
    lines = (json.dumps({"messages": each}) + "\n" for each in conversations)
    (tmp_path / "chats.jsonl").write_text("".join(lines))
    expected = [labelled(tokenizer, each) for each in conversations]
    fitting = [each for each in expected if len(each[0]) <= SEQ]
    assert COUNT / 2 < len(fitting) < COUNT - 10

    data_command(
        tmp_path / "chats.jsonl",
        tmp_path / "chats.bin",
        tokenizer=tmp_path / "tokenizer.json",
        seq_length=SEQ,
        skip_bad_lines=COUNT - len(fitting),
    )

    assert sorted(packed_examples(tmp_path / "chats.bin")) == sorted(fitting)

    model = replace(shape, vocab_size=320, seq_length=SEQ, num_layers=2)
    sequences = (read_index(tmp_path / "chats.bin").num_tokens - 1) // SEQ
    config = make_config(
        tmp_path / "chats.bin",
        cuts=(0, 2),
        model=model,
        steps=1,
        microbatches=(sequences,),
        documents="separate",
        grad_clip=None,
    )
    corpus = load_corpus(config.data, "here", SEQ, 320)
    trainer = Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    result = trainer.step(0)

    stage = DecoderStage(model, Stage(0, 0, 2), config.seed)
    loss = reference(stage, fitting)
    loss.backward()  # type: ignore[no-untyped-call]
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    for shard in trainer.zero1.shards():
        gradient = stage.get_parameter(shard.name).grad
        assert gradient is not None
        torch.testing.assert_close(shard.gradient, gradient.flatten()[shard.start : shard.stop], rtol=1e-4, atol=1e-6)
