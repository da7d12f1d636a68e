"""A model's chat template, which renders the messages of a conversation as the text that the model was trained on.

Templates are Jinja and come from anyone who publishes a model, so they run in Jinja's sandbox, without access to
Python. They can use the functions, `generation` blocks and token names of the transformers library. Source: its page
"Chat templates", huggingface.co/docs/transformers.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from holmes_cli.tuning.bounded_work import bounded_work
from holmes_core.errors import HolmesError
from holmes_runtime.config.bounded_file import open_bounded
from holmes_runtime.node.data_files.document_tokens import CONFIG_FILE, read_config, token_text

TOKENS_FILE, TEMPLATE_FILE = "special_tokens_map.json", "chat_template.jinja"  # in the folder of a tokenizer
MAX_TEMPLATE_BYTES = 2**20  # the longest published ones have some tens of kB
MAX_MEMORY_BYTES, MAX_CPU_S = 2**30, 2.0  # for one conversation, which usually takes milliseconds
TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Message = Mapping[str, object]
"""`role`, `content`, and other keys that a template may use."""


class ChatTemplate:
    """A compiled template. `place` names its file in errors."""

    def __init__(self, text: str, place: str, tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        """Compile `text`. `tokens` are the texts of special tokens such as `eos_token`.

        Conversations with tools use the template `with_tools` if there is one.

        Raises:
            HolmesError: The text is not a valid template.
        """
        self.place, self._tokens = place, tokens
        try:
            with self._bounded():
                self._template = _Sandbox().from_string(text)
                self._with_tools = self._template if with_tools is None else _Sandbox().from_string(with_tools)
        except TemplateSyntaxError as error:
            raise self._refusal(str(error), error.lineno) from None
        except HolmesError:
            raise
        except Exception as error:  # Jinja generates Python code, which may not compile
            raise self._refusal(f"{type(error).__name__}: {error}", 1) from None

    def text(self, messages: Sequence[Message], tools: object = None, add_generation_prompt: bool = False) -> str:
        """Return the conversation as text. A generation prompt, which begins the assistant's next message, may follow.

        `tools` are the functions that the assistant may call, as in the record.

        Raises:
            ValueError: The template rejects these messages.
            HolmesError: The template needs something that the sandbox forbids.
        """
        own = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": tools, "documents": None}
        try:
            with self._bounded():
                return (self._with_tools if tools else self._template).render(own, **self._tokens)
        except HolmesError:
            raise
        except Exception as error:  # a template may call any method of a message's values
            raise ValueError(f"{self.place}, line {_line(error)}: {type(error).__name__}: {error}") from None

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Raise HolmesError if the template accesses Python, or needs too much memory or time."""
        try:
            with bounded_work(MAX_MEMORY_BYTES, MAX_CPU_S):
                yield
        except SecurityError as error:
            raise self._refusal(str(error), _line(error)) from None
        except MemoryError:
            raise self._refusal(f"it takes more than {MAX_MEMORY_BYTES >> 30} GiB of memory", 1) from None
        except TimeoutError as error:
            raise self._refusal(f"it takes more than {MAX_CPU_S:.0f} s for one conversation", _line(error)) from None

    def _refusal(self, reason: str, line: int) -> HolmesError:
        return HolmesError(
            f"{self.place}, line {line}: {reason}", "correct the chat template, or give another with --chat-template"
        )


def open_template(template: Path | None, tokenizer: Path | None) -> ChatTemplate | None:
    """Return the template in file `template`, or else in the folder of `tokenizer`; None if there is none.

    Raises:
        HolmesError: The file cannot be read or is not a valid template.
    """
    try:
        config = _config(tokenizer)
        own = None if tokenizer is None else tokenizer.with_name(TEMPLATE_FILE)
        file = template or (own if own is not None and own.is_file() else None)
        if file is not None:
            named, place = {"default": _read(file)}, str(file)
        else:
            named, place = _named(config.get("chat_template")), f"{tokenizer}: chat_template of {CONFIG_FILE}"
    except (OSError, ValueError) as error:
        raise HolmesError(f"chat template: {error}", "name a Jinja file of 1 MiB at most in UTF-8") from None
    if not named:
        return None
    tokens = {name: token_text(config.get(name)) for name in TOKENS}
    known = {name: token for name, token in tokens.items() if token is not None}
    return ChatTemplate(named["default"], place, known, named.get("tool_use"))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it."""

    intercepted_binops = frozenset(["**"])  # one power of numbers may take hours, and nothing interrupts it

    def __init__(self) -> None:
        # Not optimized: constants would be computed by the compiler, which takes an error of any kind for a variable.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_GenerationBlocks, loopcontrols]
        )
        self.filters["tojson"] = _to_json
        self.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse the attribute at once: Jinja itself writes nothing for one that nothing else is asked of."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe.")

    def call_binop(self, _: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse the intercepted operators."""
        raise SecurityError(f"{left!r} {operator} {right!r}: chat templates may not compute powers")


class _GenerationBlocks(Extension):
    """`{% generation %}` around an assistant's text. It leaves the text as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _line(error: BaseException) -> int:
    """Return the line of the template in which `error` was raised; 1 if that is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 1 for frame in reversed(frames) if frame.filename == "<template>"), 1)


def _config(tokenizer: Path | None) -> dict[str, Any]:
    """Return the configuration in the folder of `tokenizer`, including special tokens from their own file."""
    if tokenizer is None:
        return {}
    return read_config(tokenizer.with_name(TOKENS_FILE)) | read_config(tokenizer.with_name(CONFIG_FILE))


def _read(file: Path) -> str:
    with open_bounded(file, MAX_TEMPLATE_BYTES) as opened:
        try:
            return opened.read(MAX_TEMPLATE_BYTES + 1).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text: {error}") from None


def _named(template: object) -> dict[str, str]:
    """Return a configuration's templates by name, if any. Raise ValueError if none of them is the default."""
    given = template if isinstance(template, list) else [{"name": "default", "template": template}]
    pairs = [(each.get("name"), each.get("template")) for each in given if isinstance(each, dict)]
    found = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    if found and "default" not in found:
        raise ValueError(f"{CONFIG_FILE} names templates {sorted(found)}, and none is the default")
    return found
