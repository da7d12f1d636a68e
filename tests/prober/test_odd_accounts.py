"""Broken and odd accounts on real sshd: each is reported by its own words, and none costs another host's facts."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.inventory import Inventory
from prober.probe import probe
from tests.core.ssh_servers import make_key, needs_sshd, sshds
from tests.free_ports import free_port

pytestmark = [pytest.mark.process, needs_sshd]
HOSTS_AT_LEAST = 20
NO_ANSWER, NO_LOGIN = "HOST-NO-ANSWER", "SSH-AUTH"
OF_ASKING = (NO_ANSWER, NO_LOGIN, "HOST-UNREACHABLE", "HOST-TIME-SKEW", "PROBE-TRUNCATED")
BASH = 'HOME={home} SHLVL=0 exec bash -c "$SSH_ORIGINAL_COMMAND"'  # it reads .bashrc, as a login by sshd does


@dataclass(frozen=True)
class Account:
    """A way to log in: the shell that its key leads to, files of its home, and what the probe should say."""

    shell: str = BASH
    files: tuple[tuple[str, str], ...] = ()
    rule: str | None = None  # None where the host is read
    words: str = ""  # of the evidence
    server: str = "keys"
    locked: bool = False  # its key has a passphrase


def bashrc(text: str, rule: str | None = None, words: str = "") -> Account:
    return Account(files=((".bashrc", text),), rule=rule, words=words)


def shell(words: str) -> Account:
    return Account(f'HOME={{home}} exec {words} -c "$SSH_ORIGINAL_COMMAND"')


ACCOUNTS = {
    "plain-1": Account(),
    "plain-2": Account(),
    "nologin": Account("exec /usr/sbin/nologin", rule=NO_ANSWER, words="not available"),
    "false": Account("exec false", rule=NO_ANSWER, words="status 1"),
    "full-home": bashrc("echo x >/dev/full || exit 1\n", NO_ANSWER, "No space left"),
    "expired": Account("echo 'Your account has expired' >&2; exit 1", rule=NO_ANSWER, words="has expired"),
    "no-zsh": bashrc("exec no-such-zsh\n", NO_ANSWER, "no-such-zsh"),
    "exits": Account("exec <&-; exit 137", rule=NO_ANSWER, words="status 137"),
    "killed": Account("kill -9 $$", rule=NO_ANSWER),
    "menu": Account("echo 'Welcome. 1) quota 2) leave'; exit 0", rule=NO_ANSWER, words="1) quota"),
    "echoes": Account("exec cat", rule=NO_ANSWER),
    "eats": bashrc("cat >/dev/null\n", NO_ANSWER, "status 0"),
    "reads-a-line": bashrc("read answer\n"),
    "prints": bashrc("echo Welcome; printf 'no newline'\n"),
    "slow": bashrc("sleep 4\n"),
    "bare-path": bashrc("PATH=/usr/bin:/bin\n"),
    "no-path": bashrc("PATH=/nowhere\nsh() { /bin/sh \"$@\"; }\n"),
    "german": bashrc("export LANG=de_DE.UTF-8 LC_ALL=de_DE.UTF-8\n"),
    "fish": shell("fish"),
    "tcsh": Account(shell("tcsh").shell, files=((".cshrc", "echo hello from cshrc\n"),)),
    "mksh": shell("mksh"),
    "ash": shell("busybox ash"),
    "banner": Account(server="banner"),
    "certificate": Account(server="authority"),
    "ipv6": Account(server="ipv6"),
    "Node.Name_X.Example": Account(),
    "password": Account(server="password", rule=NO_LOGIN),
    "passphrase": Account(rule=NO_LOGIN, words="passphrase", locked=True),
}  # fmt: skip
NEEDED = {"fish": "fish", "tcsh": "tcsh", "mksh": "mksh", "ash": "busybox"}
HERE = {name: each for name, each in ACCOUNTS.items() if name not in NEEDED or shutil.which(NEEDED[name])}


def settings(folder: Path) -> dict[str, str]:
    """The settings of every server but its addresses."""
    certified = f"TrustedUserCAKeys {folder}/authority.pub\nAuthorizedKeysFile none"
    return {
        "keys": "",
        "banner": f"Banner {folder}/greeting",
        "authority": f"{certified}\nForceCommand {folder}/run/plain-1",
        "ipv6": "ListenAddress [::1]:{port}",
        "password": "PubkeyAuthentication no",
    }


def key_of(folder: Path, name: str) -> Path:
    return folder / f"key-{name.replace('.', '-')}"


def add_account(folder: Path, name: str, account: Account) -> str:
    """Make the key, the home and the shell of an account; its line of authorized keys."""
    home, run = folder / "home" / name, folder / "run" / name
    home.mkdir(parents=True)
    run.parent.mkdir(exist_ok=True)
    for file, text in account.files:
        (home / file).write_text(text, encoding="utf-8")
    run.write_text(f"#!/bin/sh\n{account.shell.format(home=home)}\n", encoding="utf-8")
    run.chmod(0o755)
    key = key_of(folder, name)
    public = make_key(key)
    if account.server == "authority":
        words = ["ssh-keygen", "-q", "-s", str(folder / "authority"), "-I", name, "-n", getpass.getuser()]
        subprocess.run([*words, f"{key}.pub"], check=True)
    if account.locked:
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", key], check=True)
    return f'command="{run}" {public}'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsFile]:
    folder = tmp_path_factory.mktemp("fleet")
    host = make_key(folder / "host")
    make_key(folder / "authority")
    (folder / "greeting").write_text("Authorized use only\n" * 20, encoding="utf-8")
    lines = [add_account(folder, name, account) for name, account in HERE.items()]
    (folder / "authorized").write_text("".join(lines), encoding="utf-8")
    servers = settings(folder)
    ports = {name: free_port() for name in servers}
    (folder / "known").write_text(f"[127.0.0.1]:* {host}[::1]:{ports['ipv6']} {host}", encoding="utf-8")
    (folder / "config").write_text(
        f"IdentitiesOnly yes\nUserKnownHostsFile {folder}/known\nGlobalKnownHostsFile /dev/null\n", encoding="utf-8"
    )
    hosts = [
        {
            "name": name,
            "address": "::1" if account.server == "ipv6" else "127.0.0.1",
            "port": ports[account.server],
            "identity_file": str(key_of(folder, name)),
        }
        for name, account in HERE.items()
    ]
    texts = {ports[name]: f"HostKey {folder}/host\n" + text.format(port=ports[name]) for name, text in servers.items()}
    with sshds(folder, texts):
        yield HostsFile.model_validate({"ssh_config": str(folder / "config"), "hosts": hosts})


@pytest.fixture(scope="module")
def probed(fleet: HostsFile) -> Inventory:
    assert len(fleet.hosts) >= HOSTS_AT_LEAST
    return probe(fleet, lambda _host, _state: None)


@pytest.mark.parametrize("name", HERE)
def test_account_is_read_or_reported_in_its_own_words(probed: Inventory, name: str) -> None:
    account, host = HERE[name], probed.host(name)
    about = [each for each in probed.findings if name in each.hosts and each.rule in OF_ASKING]
    if account.rule is None:
        assert (host.reachable, about) == (True, [])
        assert host.kernel == os.uname().release
        assert host.nofile is not None
        assert host.netdevs
    else:
        assert not host.reachable
        assert [each.rule for each in about] == [account.rule]
        assert account.words in about[0].evidence
