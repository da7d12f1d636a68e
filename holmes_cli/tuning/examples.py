"""Examples to fine-tune on: records with a prompt and a completion, or with the messages of a conversation.

The model only reads a prompt and the messages of others. It learns to predict a completion and the messages of the
assistant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holmes_cli.tuning.chat_template import ChatTemplate
from holmes_cli.tuning.conversation import ConversationReader, Stretch, predicted_turns, read_messages, read_tools
from holmes_core.errors import HolmesError
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.documents import has_documents, read_records
from holmes_runtime.node.data_files.text import Tokenizer

COLUMNS = ("messages", "prompt", "completion", "tools")
CHARACTERS = 128  # of a token at most: a conversation that is longer in characters is rejected before it is tokenized


@dataclass(frozen=True)
class Example:
    """The text of one example. `is_framed`: the tokens at the borders of documents go around it.

    A chat template writes its own border tokens.
    """

    stretches: tuple[Stretch, ...]
    is_framed: bool

    def tokens(self, tokenizer: Tokenizer, start: int) -> list[int]:
        """Return the tokens, those that are only read as bitwise complements. `start` is that of `start_tokens`.

        Each stretch is tokenized separately, like a prompt in use. The first token cannot be predicted from anything.
        """
        begin = [tokenizer.begin_of_document] if self.is_framed and tokenizer.begin_of_document is not None else []
        end = [tokenizer.end_of_document] if self.is_framed and tokenizer.end_of_document is not None else []
        found = [~token for token in begin]
        for stretch, tokens in zip(self.stretches, _encode_parts(self.stretches, tokenizer, start), strict=True):
            found += tokens if stretch.is_predicted else (~token for token in tokens)
        found += end
        return [~token if place == 0 and token >= 0 else token for place, token in enumerate(found)]


def start_tokens(tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a newline if the tokenizer puts a mark before each text; 0 if it does not."""
    line, letter, both = map(list, tokenizer.encode([b"\n", b"a", b"\na"]))
    return len(line) if both != line + letter and both[: len(line)] == line else 0


def _encode_parts(stretches: Sequence[Stretch], tokenizer: Tokenizer, start: int) -> list[list[int]]:
    """Return the tokens of each stretch, all but the first without the mark. `start` is that of `start_tokens`."""
    texts = [stretch.text.encode("utf-8") for stretch in stretches]
    pieces = [b"\n" + text if start and place else text for place, text in enumerate(texts)]
    return [list(tokens)[start if place else 0 :] for place, tokens in enumerate(tokenizer.encode(pieces))]


def holds_examples(files: Sequence[Path], bad_lines: BadLines, prefers_text: bool) -> bool:
    """Return True if the first valid record of `files` is an example, and not text that `prefers_text` prefers.

    Raises:
        ValueError: As `read_records`.
    """
    fields = ("text", *COLUMNS)

    def is_example(record: Mapping[str, object]) -> bool:
        if not {"text", "messages", "completion"} & record.keys():
            raise ValueError(f"it has neither text, nor prompt and completion, nor messages, only {sorted(record)}")
        return bool({"messages", "completion"} & record.keys()) and not (prefers_text and "text" in record)

    found = (read_records(file, bad_lines, fields, is_example) for file in files if has_documents(file))
    return next((record for records in found for record, _ in records), False)


class ExampleReader:
    """Reads the examples of files as tokens."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, length: int, bad_lines: BadLines) -> None:
        """`length` is the maximum number of tokens of an example."""
        self._tokenizer, self._length, self._bad_lines = tokenizer, length, bad_lines
        self._start = start_tokens(tokenizer)
        self._conversations = ConversationReader(template, CHARACTERS * length) if template is not None else None

    @property
    def split(self) -> int:
        """The number of conversations that became one example per answer."""
        return 0 if self._conversations is None else self._conversations.split

    def read(self, file: Path) -> Iterator[tuple[list[list[int]], int]]:
        """Yield the examples of each record, as returned by `Example.tokens`, and the bytes of `file` read for it.

        Raises:
            ValueError: Too many records are too long or not examples; names file and line.
            HolmesError: The chat template or the tokenizer does not end answers, or the template breaks its limits.
        """
        return read_records(file, self._bad_lines, COLUMNS, self._tokens)

    def _tokens(self, record: Mapping[str, object]) -> list[list[int]]:
        found = [example.tokens(self._tokenizer, self._start) for example in self._examples(record)]
        longest = max(map(len, found))
        if longest > self._length:
            raise ValueError(f"it has {longest:,} tokens, and a sequence --seq-length {self._length:,}")
        if any(max(tokens, default=-1) < 0 for tokens in found):
            raise ValueError("it has nothing to predict")
        return found

    def _examples(self, record: Mapping[str, object]) -> list[Example]:
        prompt, completion = record.get("prompt"), record.get("completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            if self._tokenizer.end_of_document is None:
                raise HolmesError(
                    "the tokenizer has no token that ends a document: a model would not learn to end a completion",
                    "set eos_token in tokenizer_config.json, in the tokenizer's folder",
                )
            return [Example((Stretch(prompt, False), Stretch(completion, True)), is_framed=True)]
        if record.get("messages") is not None:
            before, written = [], read_messages("messages", record["messages"])
        elif prompt is not None and completion is not None:
            before, written = read_messages("prompt", prompt), read_messages("completion", completion)
        else:
            raise ValueError(f"it has neither messages nor prompt and completion, only {sorted(record)}")
        if self._conversations is None:
            raise ValueError("it has messages, and the tokenizer has no chat template: give one with --chat-template")
        messages, tools = [*before, *written], read_tools(record.get("tools"))
        found = self._conversations.examples(messages, predicted_turns(messages, len(before)), tools)
        return [Example(stretches, is_framed=False) for stretches in found]
