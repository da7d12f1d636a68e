"""The messages of a conversation as text: the text that a model reads, and the text that it learns to write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from holmes_cli.tuning.chat_template import ChatTemplate, Message
from holmes_core.errors import HolmesError

WRITER = "assistant"  # the role of the messages that a model writes
PROBE = "holmes-answer"  # an answer that shows how a template ends one


class Stretch(NamedTuple):
    """Consecutive text of an example, all of it read or all of it predicted."""

    text: str
    is_predicted: bool


def read_messages(key: str, value: object) -> list[Message]:
    """Return the messages in the field `key` of a record, without the null keys that rows of tables have.

    Parts of text are joined. A message that only calls functions has an empty text.

    Raises:
        ValueError: The value is not a list of messages, or a part of one is not text.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f'the field "{key}" is {str(value)[:80]!r}, not a list of messages')
    messages: list[Message] = []
    for place, given in enumerate(value, start=1):
        message = _without_nulls(given)
        has_content = isinstance(message, dict) and ("content" in message or "tool_calls" in message)
        if not isinstance(message, dict) or not has_content or not isinstance(message.get("role"), str):
            raise ValueError(f'message {place} of "{key}" has no role and content: {str(given)[:80]!r}')
        parts = message.get("content", "")
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise ValueError(f'message {place} of "{key}" has a part that is not text: {str(part)[:80]!r}')
        if not isinstance(parts, str | list):
            raise ValueError(f'message {place} of "{key}" has the content {str(parts)[:80]!r}, not text')
        if message.get("weight", 1) not in (0, 1):
            raise ValueError(
                f'message {place} of "{key}" has the weight {message["weight"]!r:.80}; only 0 and 1 are known'
            )
        text = parts if isinstance(parts, str) else "".join(part["text"] for part in parts)
        messages.append({**message, "content": text})
    return messages


def read_tools(value: object) -> list[object] | None:
    """Return the functions of a record, which may be JSON text. Raise ValueError if they are not a list of objects."""
    tools = json.loads(value) if isinstance(value, str) else value
    if tools is not None and not (isinstance(tools, list) and all(isinstance(each, dict) for each in tools)):
        raise ValueError(f'the field "tools" is {str(tools)[:80]!r}, not a list of functions')
    return None if not tools else [_without_nulls(each) for each in tools]


def predicted_turns(messages: Sequence[Message], first: int = 0) -> list[int]:
    """Return the indices, from `first` on, of the assistant's messages, except for those with `weight` 0."""
    turns = (place for place in range(first, len(messages)) if messages[place]["role"] == WRITER)
    return [place for place in turns if messages[place].get("weight", 1) != 0]


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


class ConversationReader:
    """Renders conversations by a template. `split` counts those that became one example per answer."""

    def __init__(self, template: ChatTemplate, max_characters: int) -> None:
        """`max_characters`: the longest conversation that is tokenized."""
        self._template, self._max_characters, self.split = template, max_characters, 0
        self._checked: set[bool] = set()  # with tools and without: the template may differ

    def examples(self, messages: Sequence[Message], turns: Sequence[int], tools: object) -> list[tuple[Stretch, ...]]:
        """Return the conversation as one example, in which the messages at `turns` are predicted.

        Some templates render an answer differently if others follow it, such as without its reasoning. The conversation
        then becomes one example per answer, each with the text that the model would have read.

        Raises:
            ValueError: The template rejects the conversation, or it is too long.
            HolmesError: The template does not end answers, or needs something that the sandbox forbids.
        """
        if not turns:
            raise ValueError(f"no message is the {WRITER}'s: there is nothing to predict")
        whole = self._template.text(messages, tools)
        if len(whole) > self._max_characters:
            raise ValueError(f"it has {len(whole):,} characters, which do not fit into a sequence of --seq-length")
        self._check_end(messages[: turns[0] + 1], tools)
        places, is_one = [0], True
        for before, after in self._answers(messages, turns, tools):
            is_one = is_one and whole.startswith(after)
            places += [len(before), len(after)]
        if is_one and places == sorted(places):
            texts = [whole[start:stop] for start, stop in pairwise([*places, len(whole)])]
            return [tuple(Stretch(text, place % 2 == 1) for place, text in enumerate(texts))]
        self.split += 1
        return [
            (Stretch(before, False), Stretch(after[len(before) :], True))
            for before, after in self._answers(messages, turns, tools)
        ]

    def _answers(self, messages: Sequence[Message], turns: Sequence[int], tools: object) -> Iterator[tuple[str, str]]:
        """Yield the text before each answer, and the text with it."""
        for turn in turns:
            before = self._template.text(messages[:turn], tools, add_generation_prompt=True)
            after = self._template.text(messages[: turn + 1], tools)
            if not after.startswith(before):
                raise ValueError(
                    f"{self._template.place}: message {turn + 1} does not begin with its generation prompt, "
                    f"{before[-40:]!r}"
                )
            for name in _called(messages[turn]):
                if name not in after[len(before) :]:
                    raise ValueError(f"{self._template.place} does not write the call of {name} in message {turn + 1}")
            yield before, after

    def _check_end(self, messages: Sequence[Message], tools: object) -> None:
        """Raise HolmesError if nothing follows an answer: a model would not learn to end one."""
        if bool(tools) in self._checked:
            return
        self._checked.add(bool(tools))
        answer = {"role": WRITER, "content": PROBE}
        _, found, end = self._template.text([*messages[:-1], answer], tools).rpartition(PROBE)
        if found and not end.strip():
            raise HolmesError(
                f"{self._template.place}: nothing follows an answer: a model would not learn to end one",
                "let the template write the token that ends an answer, also after the last message; tokens such as "
                "eos_token are known from tokenizer_config.json in the tokenizer's folder",
            )


def _called(message: Message) -> Iterator[str]:
    """Yield the names of the functions that a message calls."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield name
