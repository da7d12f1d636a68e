"""No name of a host or user that `ssh` refuses reaches its configuration, or a shell that stands in it."""

from __future__ import annotations

import io
import random
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from holmes_core.records.access import Access
from holmes_core.remote.ssh_client import open_proxy
from holmes_core.remote.ssh_settings import ssh_settings
from tests.seeds import few_of

NUM_NAMES = 220
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
PIECES = (
    *"'`\"$\\;&<>|(){}%*?[]~#!=:,^ -_.@/",
    *"\t\n\r\v\f\x01\x1b\x7f",
    *("\u00a0", "\u0085", "\u2028", "\u202e", "\u00e9"),
    *("%h", "%%", "%r", "${IFS}", "-oProxyCommand=", "fe80::1%", "\n  ProxyCommand "),
)


def payloads(canary: Path) -> tuple[str, ...]:
    """Words by which one shell or another would make the file."""
    made = f"touch {canary}"
    no_blank = made.replace(" ", "${IFS}")
    return f"$({made})", f"`{made}`", f";{no_blank};", f"|{made}", f"&{no_blank}&", f"\n{made}\n", f"'$({no_blank})'"


def hostile_names(seed: int, canary: Path) -> Iterator[str]:
    """Names made of letters, of what shells and ssh read as more than a name, and of whole commands."""
    chance = random.Random(seed)
    for _ in range(NUM_NAMES):
        parts = [chance.choice(string.ascii_lowercase) for _ in range(chance.randint(0, 3))]
        parts += [chance.choice(PIECES) for _ in range(chance.randint(0, 2))]
        parts += [chance.choice(payloads(canary))] if chance.random() < 0.4 else []
        chance.shuffle(parts)
        yield "".join(parts) or "-"


def shell_config(folder: Path) -> Path:
    """An SSH configuration that hands every name it knows to a shell."""
    config = folder / "ssh_config"
    words = "%h %n %r %u %l"
    config.write_text(f'Match exec "true {words}"\n  ProxyCommand true %h %r\n', encoding="utf-8")
    return config


def ssh_takes(config: Path, *words: str) -> bool:
    """Whether `ssh` takes a host, and perhaps a user, on its command line."""
    done = subprocess.run(["ssh", "-G", "-F", str(config), *words], capture_output=True, timeout=600, check=False)
    return b"contains invalid characters" not in done.stderr


def refusal(config: Path, address: str, user: str | None = None) -> HolmesError | None:
    """Why a host is not looked up in the SSH configuration; None where it is."""
    try:
        ssh_settings("a1", Access.model_construct(address=address, user=user, ssh_config=str(config)))
    except HolmesError as error:
        return error
    return None


@needs_ssh
@pytest.mark.parametrize("number_of_names", few_of(1, [20, NUM_NAMES]))
def test_what_ssh_refuses_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number_of_names: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # what runs a `Match exec` reads it
    canary, config = tmp_path / "CANARY", shell_config(tmp_path)
    refused = 0
    for number, name in enumerate(islice(hostile_names(32, canary), number_of_names)):
        is_user = number % 2 == 1
        error = refusal(config, "a1", name) if is_user else refusal(config, name)
        assert not canary.exists(), repr(name)
        if error is None:
            assert ssh_takes(config, *(("-l", name, "a1") if is_user else ("--", name))), repr(name)
        else:
            assert error.exit_code == WRONG_USAGE
            assert error.what.startswith(("host a1: ", str(config))), repr(name)
            refused += 1
    assert refused > number_of_names / 2
    assert not canary.exists()


@pytest.mark.slow
@needs_ssh
def test_plain_letters_are_taken_where_ssh_takes_them(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.touch()
    for letter in map(chr, range(1, 128)):
        name = f"a{letter}b"
        assert (refusal(config, name) is None) == ssh_takes(config, "--", name), repr(letter)
        assert (refusal(config, "a1", name) is None) == ssh_takes(config, "-l", name, "a1"), repr(letter)


@pytest.mark.parametrize("name", ["fe80::1%eth0", "a_1.example", "2001:db8::1", "h\u00e9"])
def test_address_that_ssh_takes_is_taken(name: str) -> None:
    assert HostEntry(name="a1", address=name).address == name


@pytest.mark.parametrize("name", ["DOMAIN\\ann", "ann@example.org", "ann b", "ann$"])
def test_user_that_ssh_takes_is_taken(name: str) -> None:
    assert HostEntry(name="a1", user=name).user == name


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (Access, {"address": "x;touch PWNED"}),
        (Access, {"user": "-oProxyCommand=x"}),
        (HostsFile, {"hosts": ["a1"], "user": "x`id`"}),
        (HostsFile, {"hosts": [{"name": "a1", "address": "-x"}]}),
        (HostsFile, {"hosts": [{"name": "a1", "user": "x\n"}]}),
    ],
    ids=str,
)
def test_record_with_such_a_name_is_not_made(record: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"is not a valid (host name or address|user name)"):
        record(**values)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("HostName x;id", "';'"),
        ("Match originalhost a1\n HostName $HOME", "'$'"),
    ],
)
def test_name_that_the_ssh_configuration_makes_is_checked_as_well(tmp_path: Path, lines: str, word: str) -> None:
    (tmp_path / "ssh_config").write_text(f"{lines}\n", encoding="utf-8")
    with pytest.raises(HolmesError, match="host a1: ") as caught:
        ssh_settings("a1", Access(ssh_config=str(tmp_path / "ssh_config")))
    assert word in caught.value.what


@pytest.mark.parametrize("hop", ["-x:22", "a;id@b1:22", "b1|id:22", "first,$(id)@b1"])
def test_every_hop_of_a_proxy_jump_is_checked(tmp_path: Path, hop: str) -> None:
    (tmp_path / "ssh_config").write_text(f"ProxyJump {hop}\n", encoding="utf-8")
    access = Access(ssh_config=str(tmp_path / "ssh_config"))
    with pytest.raises(HolmesError, match=r"is not a valid (host name or address|user name)"):
        open_proxy(ssh_settings("a1", access), access, ("a1",))
