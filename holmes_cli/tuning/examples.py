"""Examples to fine-tune on: records with a prompt and a completion, or with the messages of a conversation.

Text that a model is given is only read; text that it is to write, a completion or the messages of the assistant, is
predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from holmes_cli.tuning.chat_template import ChatTemplate, Message
from holmes_core.errors import HolmesError
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.documents import has_documents, read_records
from holmes_runtime.node.data_files.text import Tokenizer

COLUMNS = ("messages", "prompt", "completion", "tools")
WRITER = "assistant"  # the role of the messages that a model writes


class Stretch(NamedTuple):
    """Consecutive text of an example, all of it read or all of it predicted."""

    text: str
    is_predicted: bool


@dataclass(frozen=True)
class Example:
    """The text of one example; `is_framed` if the tokens at the borders of documents belong around it.

    A chat template writes its own.
    """

    stretches: tuple[Stretch, ...]
    is_framed: bool

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens; of one that is only read, its bitwise complement.

        Each stretch is tokenized by itself, as a prompt is where a model is asked. The first token is only read, as
        nothing comes before it.
        """
        begin = [tokenizer.begin_of_document] if self.is_framed and tokenizer.begin_of_document is not None else []
        end = [tokenizer.end_of_document] if self.is_framed and tokenizer.end_of_document is not None else []
        found = [~token for token in begin]
        encoded = tokenizer.encode([stretch.text.encode("utf-8") for stretch in self.stretches])
        for stretch, tokens in zip(self.stretches, encoded, strict=True):
            found += tokens if stretch.is_predicted else (~token for token in tokens)
        found += end
        return [~token if place == 0 and token >= 0 else token for place, token in enumerate(found)]


def holds_examples(file: Path, bad_lines: BadLines) -> bool:
    """Return True if the first record of `file` is an example. Raises as `read_records` does."""
    if not has_documents(file):
        return False
    first = next(read_records(file, bad_lines, ("text", *COLUMNS), dict), None)
    return first is not None and bool({"messages", "completion"} & first[0].keys())


class ExampleReader:
    """Reads the examples of files as tokens.

    `split` counts the conversations that became an example for each answer.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, length: int, bad_lines: BadLines) -> None:
        """`length` is the tokens of the longest example that is taken."""
        self._tokenizer, self._template, self._length, self._bad_lines = tokenizer, template, length, bad_lines
        self.split = 0

    def read(self, file: Path) -> Iterator[tuple[list[list[int]], int]]:
        """Yield the examples of each record, as `Example.tokens`, and the bytes of `file` that were read for it.

        Raises:
            ValueError: One record too many is no example, or too long; names file and line.
            HolmesError: The chat template reaches for something that it may not.
        """
        return read_records(file, self._bad_lines, COLUMNS, self._tokens)

    def _tokens(self, record: Mapping[str, object]) -> list[list[int]]:
        found = [example.tokens(self._tokenizer) for example in self._examples(record)]
        longest = max(map(len, found))
        if longest > self._length:
            raise ValueError(f"it has {longest:,} tokens, and a sequence --seq-length {self._length:,}")
        if any(max(tokens, default=-1) < 0 for tokens in found):
            raise ValueError("there is nothing to predict in it")
        return found

    def _examples(self, record: Mapping[str, object]) -> list[Example]:
        messages = record.get("messages")
        if messages is not None:
            conversation = _messages("messages", messages)
            turns = [place for place, message in enumerate(conversation) if message["role"] == WRITER]
            return self._conversation(conversation, turns, record.get("tools"))
        prompt, completion = record.get("prompt"), record.get("completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            return [Example((Stretch(prompt, False), Stretch(completion, True)), is_framed=True)]
        if prompt is None or completion is None:
            raise ValueError(f"it has neither messages nor prompt and completion, only {sorted(record)}")
        before, written = _messages("prompt", prompt), _messages("completion", completion)
        turns = [len(before) + place for place, message in enumerate(written) if message["role"] == WRITER]
        return self._conversation([*before, *written], turns, record.get("tools"))

    def _conversation(self, messages: Sequence[Message], turns: Sequence[int], tools: object) -> list[Example]:
        """Return the conversation as one example, in which the messages at `turns` are predicted.

        Some templates write an answer otherwise once others follow it, such as without its reasoning. The conversation
        then becomes an example for each answer, each with what the model would have read.
        """
        if self._template is None:
            raise ValueError("it has messages, and the tokenizer has no chat template: give one with --chat-template")
        if not turns:
            raise ValueError(f"no message is the {WRITER}'s: there is nothing to predict")
        prompts = [self._template.text(messages[:turn], tools, add_generation_prompt=True) for turn in turns]
        answered = [self._template.text(messages[: turn + 1], tools) for turn in turns]
        for turn, before, after in zip(turns, prompts, answered, strict=True):
            if not after.startswith(before):
                raise ValueError(
                    f"{self._template.place}: message {turn + 1} does not follow what it writes before an answer, "
                    f"{before[-40:]!r}"
                )
            content = messages[turn]["content"]
            if isinstance(content, str) and content.strip() and after.endswith(content.rstrip()):
                raise HolmesError(
                    f"{self._template.place}: nothing follows an answer, {after[-40:]!r}: a model learns no end",
                    "let the template write the token that ends an answer, also after the last message",
                )
        whole = self._template.text(messages, tools)
        borders = [border for pair in zip(prompts, answered, strict=True) for border in pair]
        if all(whole.startswith(border) for border in borders) and borders == sorted(borders, key=len):
            places = [0, *map(len, borders), len(whole)]
            texts = [whole[start:stop] for start, stop in pairwise(places)]
            return [Example(tuple(Stretch(text, place % 2 == 1) for place, text in enumerate(texts)), False)]
        self.split += 1
        pairs = zip(prompts, answered, strict=True)
        return [
            Example((Stretch(before, False), Stretch(after[len(before) :], True)), is_framed=False)
            for before, after in pairs
        ]


def _messages(key: str, value: object) -> list[Message]:
    """Return the messages in a field of a record. Raise ValueError if they are none."""
    if not isinstance(value, list) or not value:
        raise ValueError(f'the field "{key}" is {str(value)[:80]!r}, not a list of messages')
    for place, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f'message {place} of "{key}" has no role and content: {str(message)[:80]!r}')
    return value
