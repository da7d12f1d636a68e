"""`holmes data` on examples to fine-tune on: packed, with what is predicted and what is only read."""

from __future__ import annotations

import gzip
import importlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holmes_cli.tuning.sequence_packing import packed
from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.node.data_files.token_file import DocumentStarts, read_index
from tests.cli.conftest import Command
from tests.seeds import few_of

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
CHATML = """{% for message in messages %}<|{{ message.role }}|>
{% generation %}{{ message.content }}{% endgeneration %}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
REASONS = """{% for message in messages %}<{{ message.role }}>{{ "hm, " if loop.last and message.role == "assistant" }}
{{- message.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


CALL = {"content": None, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}
CALLED = '[{"function": {"arguments": {}, "name": "add"}, "type": "function"}]</s>'


def say(*texts: str) -> dict[str, object]:
    """A conversation that the user begins."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]}


def chat_line(answer: dict[str, object], **more: object) -> bytes:
    """A conversation with one answer, as a line."""
    return json.dumps({"messages": [{"role": "user", "content": "hi"}, answer], **more}).encode() + b"\n"


def write_lines(path: Path, *records: object) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def examples(path: Path) -> list[tuple[str, str]]:
    """The examples of a packed file of bytes, without padding: text, and with `_` for what is only read."""
    index = read_index(path)
    assert index.packed_length is not None
    corpus = load_corpus(DataSettings(str(path), documents="separate"), "here", index.packed_length, 256)
    tokens = corpus.training[0].read(0, index.num_tokens).tolist()
    starts = [*DocumentStarts(index), index.num_tokens]
    found = []
    for start, stop in pairwise(starts):
        example = tokens[start:stop]
        text = bytes(max(token, ~token) for token in example).decode()
        if text.strip("\0"):
            found.append((text, "".join(chr(token) if token >= 0 else "_" for token in example)))
    return found


def test_a_completion_and_its_end_are_predicted_and_the_prompt_is_read(command: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"prompt": "1+1=", "completion": "2"}, {"prompt": "", "completion": "yes"})

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "16")

    assert done.code == 0, done.stderr
    # Nothing comes before the first token of an example, so that it is not predicted.
    assert examples(tmp_path / "out.bin") == [("1+1=2\0", "____2\0"), ("yes\0", "_es\0")]
    assert "2 examples in 1 sequences of 16, 62.5% full; 5 tokens are predicted" in done.stdout
    assert "documents: separate}`, `seq_length: 16`" in done.stdout
    assert "  read       1+1=\n  predicted  2\\x00\n" in done.stdout


def test_the_messages_of_the_assistant_are_predicted(command: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML)
    write_lines(tmp_path / "a.jsonl", say("hi", "ho", "so", ""))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "100", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    ((text, predicted),) = examples(tmp_path / "out.bin")
    assert text == "<|user|>\nhi</s>\n<|assistant|>\nho</s>\n<|user|>\nso</s>\n<|assistant|>\n</s>\n"
    assert predicted.replace("_", "") == "ho</s>\n</s>\n"
    assert predicted[text.index("ho") :].startswith("ho</s>\n_")


def test_a_conversation_whose_answers_change_later_becomes_an_example_for_each(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "chat.jinja").write_text(REASONS)
    write_lines(tmp_path / "a.jsonl", say("hi", "ho", "so", "la"))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "80", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    assert [text for text, _ in examples(tmp_path / "out.bin")] == [
        "<user>hi</s><assistant>hm, ho</s>",
        "<user>hi</s><assistant>ho</s><user>so</s><assistant>hm, la</s>",
    ]
    assert [predicted.replace("_", "") for _, predicted in examples(tmp_path / "out.bin")] == [
        "hm, ho</s>",
        "hm, la</s>",
    ]
    assert "1 conversations became an example for each answer" in done.stderr


def test_a_template_is_given_the_tools_of_a_conversation(command: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ tools | map(attribute='name') | join(',') }}:" + CHATML)
    write_lines(tmp_path / "a.jsonl", {**say("hi", "ho"), "tools": [{"name": "add"}, {"name": "sub"}]})

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "100", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    assert [text[:12] for text, _ in examples(tmp_path / "out.bin")] == ["add,sub:<|us"]


WITH_CALLS = "{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson(sort_keys=1) }}{% endif %}"
CALLS = CHATML.replace("{{ message.content }}", WITH_CALLS)


@pytest.mark.parametrize(
    ("answer", "predicted"),
    [
        ({"content": ">"}, "></s>"),
        ({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "o"}]}, "ho</s>"),
        (CALL, CALLED),
        ({"tool_calls": CALL["tool_calls"]}, CALLED),
        ({"content": "ho", "name": None, "tool_calls": None}, "ho</s>"),
    ],
    ids=["end", "parts", "null", "call", "nulls"],
)  # fmt: skip
def test_an_answer_is_what_its_content_and_calls_say(
    command: Command, tmp_path: Path, answer: dict[str, object], predicted: str
) -> None:
    has_calls = answer.get("tool_calls") is not None
    (tmp_path / "chat.jinja").write_text((CALLS if has_calls else CHATML).replace("</s>\n", "</s>"))
    (tmp_path / "a.jsonl").write_bytes(chat_line({"role": "assistant", **answer}))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "200", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    assert [text.replace("_", "") for _, text in examples(tmp_path / "out.bin")] == [predicted]


def test_an_answer_of_weight_0_is_only_read(command: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML)
    line = say("hi", "ho", "so", "la")
    line["messages"][1]["weight"] = 0  # type: ignore[index]
    write_lines(tmp_path / "a.jsonl", line)

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "100", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    assert [text.replace("_", "") for _, text in examples(tmp_path / "out.bin")] == ["la</s>\n"]


def test_of_an_example_with_many_turns_the_first_are_shown(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(say(*["x", "y"] * 20)) + "\n")
    (tmp_path / "chat.jinja").write_text(CHATML)

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "2048", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    assert done.stdout.count("  predicted") == 8
    assert "24 more stretches" in done.stdout


def test_a_conversation_far_too_long_is_not_tokenized(command: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML)
    write_lines(tmp_path / "a.jsonl", say("hi", "ho" * 1000))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "8", "--chat-template", "chat.jinja")

    assert done.code == 2
    assert "line 1: it has 2,035 characters, which do not fit" in " ".join(done.stderr.split())


def test_completions_end_in_compressed_lines_too(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "1+1=", "completion": "2"}\n'))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n{"text": "de"}\n'))

    done = command("data", "a.jsonl.gz", "-o", "out.bin", "--seq-length", "8")
    text = command("data", "t.jsonl.gz", "-o", "text.bin")

    assert (done.code, text.code) == (0, 0), done.stderr + text.stderr
    assert examples(tmp_path / "out.bin") == [("1+1=2\0", "____2\0")]
    assert (tmp_path / "text.bin").read_bytes() == b"abc\0de\0"


def test_a_record_with_text_is_text_unless_a_sequence_length_is_given(command: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "abc", "prompt": "1", "completion": "2"})

    text, tuned = (command("data", "a.jsonl", "-o", f"{len(more)}.bin", *more) for more in ([], ["--seq-length", "8"]))

    assert (text.code, tuned.code) == (0, 0), text.stderr + tuned.stderr
    assert (tmp_path / "0.bin").read_bytes() == b"abc\0"
    assert examples(tmp_path / "2.bin") == [("12\0", "_2\0")]


def test_records_before_the_first_example_may_be_skipped(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.jsonl").write_text("")
    write_lines(tmp_path / "a" / "b.jsonl", {"id": 1}, {"prompt": "1", "completion": "2"})

    refused = command("data", "a", "-o", "out.bin", "--seq-length", "8")
    done = command("data", "a", "-o", "out.bin", "--seq-length", "8", "--skip-bad-lines", "1")

    assert refused.code == 2
    assert "b.jsonl, line 1: it has neither text, nor prompt and completion" in " ".join(refused.stderr.split())
    assert done.code == 0, done.stderr
    assert examples(tmp_path / "out.bin") == [("12\0", "_2\0")]


def test_messages_may_be_split_in_prompt_and_completion(command: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML)
    prompt, completion = say("a", "b", "c")["messages"], [{"role": "assistant", "content": "d"}]
    write_lines(tmp_path / "a.jsonl", {"prompt": prompt, "completion": completion})

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "100", "--chat-template", "chat.jinja")

    assert done.code == 0, done.stderr
    ((_, predicted),) = examples(tmp_path / "out.bin")
    assert predicted.replace("_", "") == "d</s>\n"


@pytest.mark.parametrize("seed", range(5))
def test_examples_are_packed_whole_and_none_is_lost(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = [drawn.choice((1, 7, 50, 64, drawn.randint(1, 64))) for _ in range(500)]
    given = [range(length) for length in lengths]

    sequences = list(packed(given, 64))

    assert sorted(len(example) for sequence in sequences for example in sequence) == sorted(lengths)
    assert all(sum(map(len, sequence)) <= 64 for sequence in sequences)
    fewest = max(sum(lengths) / 64, sum(length > 32 for length in lengths))
    assert len(sequences) <= 1.03 * fewest + 1


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CHAT_LINE = json.dumps(say("hi", "ho")).encode() + b"\n"


HOSTILE = [
    (CHAT_LINE, "a\n{{ ''.__class__.__mro__ }}", "chat.jinja, line 2: access to attribute '__class__'"),
    (CHAT_LINE, CHATML + "{{ messages.__class__ }}", "chat.jinja, line 4: access to attribute '__class__'"),
    (CHAT_LINE, CHATML + "{{ messages|attr('__class__') }}", "chat.jinja, line 4: access to attribute '__class__'"),
    (CHAT_LINE, "{{ '{0.__class__}'.format(1) }}" + CHATML, "chat.jinja, line 1: access to attribute '__class__'"),
    (CHAT_LINE, "{{ messages.append(1) }}", "chat.jinja, line 1: access to attribute 'append'"),
    (CHAT_LINE, "{{ cycler.__init__.__globals__ }}", "chat.jinja, line 1: access to attribute '__init__'"),
    (CHAT_LINE, "{% include '/etc/passwd' %}", "a.jsonl, line 1: chat.jinja, line 1: TypeError: no loader"),
    (CHAT_LINE, "a\n\n{% for m in messages %}", "chat.jinja, line 3: Unexpected end of template"),
    (CHAT_LINE, "{{ 9 ** 9 ** 9 }}", "chat.jinja, line 1: 9 ** 9: chat templates may not compute powers"),
    (CHAT_LINE, "{{ 'a' * 9999999999 }}", "chat.jinja, line 1: it takes more than 1 GiB of memory"),
    (CHAT_LINE, ENDLESS, "chat.jinja, line 1: it takes more than 2 s for one conversation"),
    (CHAT_LINE, "a\n{{ raise_exception('no') }}", "a.jsonl, line 1: chat.jinja, line 2: TemplateError: no"),
    (CHAT_LINE, "{{ messages[0].content }}{{ add_generation_prompt }}", "chat.jinja: message 2 does not begin with"),
    (CHAT_LINE, CHATML.replace("</s>\n", ""), "chat.jinja: nothing follows an answer"),
    (CHAT_LINE, CHATML.replace("</s>", "{{ eos_token }}"), "chat.jinja: nothing follows an answer"),
    (CHAT_LINE, "{% for a in b %}" * 25 + "{% endfor %}" * 25, "chat.jinja, line 1: SyntaxError: too many"),
    (CHAT_LINE, "{{ 1" + "0" * 5000 + " }}", "chat.jinja, line 1: ValueError: Exceeds the limit"),
    (CHAT_LINE, "\ufffd" * 2**19, "chat template: "),
    (CHAT_LINE, "", "it has nothing to predict"),
    (b'{"messages": [{"role": "user", "content": "hi"}]}\n', CHATML, "line 1: no message is the assistant's"),
    (chat_line({"role": "assistant", "content": [{"type": "image"}]}), CHATML, "has a part that is not text"),
    (chat_line({"role": "assistant", "content": 3}), CHATML, 'message 2 of "messages" has the content \'3\', not text'),
    (chat_line({"role": "assistant", **CALL}), CHATML, "chat.jinja does not write the call of add in message 2"),
    (chat_line({"role": "assistant", "content": "a"}, tools="add"), CHATML, "line 1: Expecting value"),
    (chat_line({"role": "assistant", "content": "a"}, tools="[1]"), CHATML, "is '[1]', not a list of functions"),
    (chat_line({"role": "assistant", "content": "a", "weight": 0}), CHATML, "there is nothing to predict"),
    (chat_line({"role": "assistant", "content": "a", "weight": 0.5}), CHATML, "has the weight 0.5; only 0 and 1"),
    (chat_line({"role": "assistant", "content": "a", "weight": "0"}), CHATML, "has the weight '0'; only 0 and 1"),
    (b'{"messages": "hi"}\n', CHATML, "a.jsonl, line 1: the field \"messages\" is 'hi', not a list of messages"),
    (b'{"messages": [{"role": "user"}]}\n', CHATML, 'message 1 of "messages" has no role and content'),
    (b'{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n', CHATML, "line 2: it has neither messages nor"),
    (b'{"prompt": "a", "completion": "b"}\n{"prompt": "\xff"}\n', CHATML, "line 2: 'utf-8' codec can't decode"),
    (b'{"prompt": "\\ud800", "completion": "b"}\n', CHATML, "line 1: 'utf-8' codec can't encode"),
    (b'{"prompt": "a", "completion": "' + b"b" * 2**20 + b'"}\n', CHATML, "it has 1,048,578 tokens"),
    (b'{"prompt": "a", "completion": "b"}\n{"prompt": ' + b"[" * 5000, CHATML, "line 2: it is nested too deeply"),
    (CHAT_LINE, "{{ ([1] * 60000000) | sum }}" * 20, "chat.jinja, line 1: it takes more than"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "template", "said"), few_of(35, HOSTILE), ids=[said for *_, said in HOSTILE])
def test_hostile_examples_are_refused_with_file_and_line(
    command: Command, tmp_path: Path, lines: bytes, template: str, said: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "chat.jinja").write_text(template)

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "64", "--chat-template", "chat.jinja")

    assert done.code == 2
    assert said in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["pairs.jsonl"], "pairs.jsonl has examples, which are packed"),
        (["a.txt", "--seq-length", "8"], "--seq-length is for examples, and a.txt has text"),
        (["a.txt", "--chat-template", "a.txt"], "--chat-template is for examples, and a.txt has text"),
        (["chats.jsonl", "--seq-length", "8"], "chats.jsonl, line 1: it has messages, and the tokenizer has no chat"),
        (["chats.jsonl", "--seq-length", "8", "--chat-template", "none.jinja"], "chat template: "),
        (["pairs.jsonl", "--seq-length", "4000000000"], "less than or equal to 16777216"),
        (["pairs.jsonl", "--seq-length", "3"], "pairs.jsonl, line 1: it has 4 tokens, and a sequence --seq-length 3"),
    ],
)
def test_options_that_do_not_go_with_the_source_are_refused(
    command: Command, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "a.txt").write_text("text")
    write_lines(tmp_path / "chats.jsonl", say("hi", "ho"))
    write_lines(tmp_path / "pairs.jsonl", {"prompt": "ab", "completion": "c"})

    done = command("data", *options, "-o", "out.bin")

    assert done.code == 2
    assert said in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("*out*"))


def test_examples_that_do_not_fit_are_left_out_where_the_command_line_allows_it(
    command: Command, tmp_path: Path
) -> None:
    write_lines(tmp_path / "a.jsonl", *({"prompt": "a", "completion": "b" * size} for size in (1, 20, 2)))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "8", "--skip-bad-lines", "1")

    assert done.code == 0, done.stderr
    assert [text for text, _ in examples(tmp_path / "out.bin")] == ["ab\0", "abb\0"]
    assert "1 bad lines" in done.stderr


def test_a_tokenizers_folder_gives_the_chat_template_and_the_special_tokens(command: Command, tmp_path: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    folder = tmp_path / "model"
    folder.mkdir()
    words = ["<s>", "</s>", "<user>", "<assistant>", "hi", "ho", "?"]
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(words[:4])
    made.save(str(folder / "tokenizer.json"))
    template = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    write_lines(tmp_path / "a.jsonl", say("hi", "ho"))

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "8", "--tokenizer", "model/tokenizer.json")

    assert done.code == 0, done.stderr
    corpus = load_corpus(DataSettings(str(tmp_path / "out.bin"), documents="separate"), "here", 8, 7)
    assert corpus.training[0].read(0, 9).tolist() == [~0, ~2, ~4, ~3, 5, 1, ~1, ~1, ~1]
    (folder / "chat_template.jinja").write_text(template.replace("bos_token", "eos_token"))  # goes before the other
    assert (
        command("data", "a.jsonl", "-o", "b.bin", "--seq-length", "8", "--tokenizer", "model/tokenizer.json").code == 0
    )
    corpus = load_corpus(DataSettings(str(tmp_path / "b.bin"), documents="separate"), "here", 8, 7)
    assert corpus.training[0].read(0, 2).tolist() == [~1, ~2]


def write_rows(file: Path) -> None:
    """Two examples as rows of Parquet, or of Arrow as the `datasets` library saves them."""
    pyarrow: Any = importlib.import_module("pyarrow")
    table = pyarrow.table({"id": [1, 2], "prompt": ["1+1=", "2+2="], "completion": ["2", "4"]})
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".parquet":
        importlib.import_module("pyarrow.parquet").write_table(table, file)
    else:
        with importlib.import_module("pyarrow.ipc").new_stream(str(file), table.schema) as stream:
            stream.write_table(table)


@needs_pyarrow
@pytest.mark.parametrize("source", ["a.parquet", "a.arrow", "saved", "clone"])
def test_rows_are_examples_too(command: Command, tmp_path: Path, source: str) -> None:
    """Also those of a folder that the `datasets` library saved, or that was cloned."""
    table = {"saved": "saved/data-00000-of-00001.arrow", "clone": "clone/train.parquet"}.get(source, source)
    write_rows(tmp_path / table)
    for name in ("dataset_info.json", "state.json") if source == "saved" else ("README.md", ".gitattributes"):
        ((tmp_path / table).parent / name).write_text("{}\n")

    done = command("data", source, "-o", "out.bin", "--seq-length", "16")

    assert done.code == 0, done.stderr
    assert examples(tmp_path / "out.bin") == [("1+1=2\0", "____2\0"), ("2+2=4\0", "____4\0")]


@needs_pyarrow
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("seed", range(8))
def test_damaged_rows_name_their_file(command: Command, tmp_path: Path, name: str, seed: int) -> None:
    """Some offsets, followed as they are, would end the process."""
    write_rows(tmp_path / name)
    drawn, content = random.Random(seed), bytearray((tmp_path / name).read_bytes())
    for _ in range(3):
        content[drawn.randrange(len(content))] = drawn.randrange(256)
    (tmp_path / name).write_bytes(content)

    done = command("data", name, "-o", "out.bin", "--seq-length", "16")

    assert done.code == 0 or (done.code == 2 and name in done.stderr)


def test_a_completion_has_no_mark_of_the_start_of_a_text(command: Command, tmp_path: Path) -> None:
    """Tokenizers like Llama 2's put a mark before each text that they are given."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    words = ["?", "</s>", "\u2581", "\n", "a", "2", "+", "4"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="?"))
    pieces = [tokenizers.pre_tokenizers.Metaspace(), tokenizers.pre_tokenizers.Split("", "isolated")]
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(pieces)
    made.save(str(tmp_path / "tokenizer.json"))
    write_lines(tmp_path / "a.jsonl", {"prompt": "2+2", "completion": "4"})

    done = command("data", "a.jsonl", "-o", "out.bin", "--seq-length", "8", "--tokenizer", "tokenizer.json")

    assert done.code == 0, done.stderr
    corpus = load_corpus(DataSettings(str(tmp_path / "out.bin"), documents="separate"), "here", 8, 8)
    assert corpus.training[0].read(0, 6).tolist() == [~2, ~5, ~6, ~5, 7, 1]
