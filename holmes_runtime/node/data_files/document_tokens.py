"""The tokens at the borders of documents, from a tokenizer's file and the configurations next to it. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holmes_runtime.config.bounded_file import read_json_object

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
MAX_CONFIG_BYTES = 2**24  # of tokenizer_config.json, which may list thousands of added tokens
# Common tokenizers' names for the end of a document: GPT-2 and NeoX, Llama 3, Llama 2 and T5, Gemma. They come first,
# as the `eos_token` of a chat model ends a turn.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def begin_of_document(file: Path, tokenizer: Any) -> int | None:
    """Return the token before a document, None if the model has seen none there.

    `add_bos_token` of tokenizer_config.json decides. If it is not set, `tokenizer` from the `tokenizers` file does: the
    token that it puts before a text.
    """
    config = read_config(file.with_name(CONFIG_FILE))
    added = config.get("add_bos_token")
    if added is not None:
        return _token_of(config.get("bos_token"), tokenizer) if added is True else None
    plain, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    is_framed = len(whole) > len(plain) and whole[1 : 1 + len(plain)] == plain
    return int(whole[0]) if is_framed else None


def end_of_document(file: Path, tokenizer: Any) -> int | None:
    """Return the token after a document: one with a common name, else the configurations' `eos`, else None."""
    known = (_token_of(name, tokenizer) for name in END_NAMES)
    return next((token for token in (*known, *_configured_ends(file, tokenizer)) if token is not None), None)


def _configured_ends(file: Path, tokenizer: Any) -> Iterator[int | None]:
    yield _token_of(read_config(file.with_name(CONFIG_FILE)).get("eos_token"), tokenizer)
    for name in ("generation_config.json", "config.json"):
        ends = read_config(file.with_name(name)).get("eos_token_id")
        token: object = ends[0] if isinstance(ends, list) and ends else ends
        is_number = isinstance(token, int) and not isinstance(token, bool)
        yield token if isinstance(token, int) and is_number and 0 <= token < tokenizer.get_vocab_size() else None


def _token_of(name: object, tokenizer: Any) -> int | None:
    """Return the token `name` as a number, None if unknown. `name` is as for `token_text`."""
    text = token_text(name)
    token: int | None = tokenizer.token_to_id(text) if text is not None else None
    return token


def token_text(name: object) -> str | None:
    """Return the text of a special token, which the transformers library writes as a string or an object."""
    text = name.get("content") if isinstance(name, dict) else name
    return text if isinstance(text, str) else None


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration at `path`, empty if there is none.

    Raises:
        ValueError: it exists but cannot be read.
    """
    try:
        return read_json_object(path, MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return {}
