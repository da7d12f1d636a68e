"""Real sshd, `ssh` and Holmes with the same keys and SSH configuration: who gets in by `ssh` gets in by Holmes."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
from tests.core.ssh_servers import make_key, needs_sshd, sshds
from tests.core.test_ssh_matrix import ssh_accepts
from tests.eventually import eventually
from tests.free_ports import free_port

pytestmark = [pytest.mark.process, needs_sshd, pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")]
KEYS = {
    "client": (),
    "other": (),
    "member": (),
    "stray": (),
    "late": (),
    "foreign": (),
    "rsa": ("-t", "rsa", "-b", "2048"),
    "ecdsa": ("-t", "ecdsa"),
}
CERTIFIED = {"member": "", "rsa": "", "ecdsa": "", "stray": "", "late": "-V 20200101:20200102", "foreign": ""}


@dataclass(frozen=True)
class Login:
    """One question: the lines of `config` for a server that knows keys or an authority, and what the agent holds."""

    name: str
    server: str
    config: str
    accepted: bool
    agent: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


YES, NO = True, False
ONLY = "IdentitiesOnly yes\n"
LOGINS = (
    Login("key", "keys", ONLY + "IdentityFile {site}/client", YES),
    Login("key of another", "keys", ONLY + "IdentityFile {site}/other", NO),
    Login("missing", "keys", ONLY + "IdentityFile {site}/missing", NO),
    Login("missing, then right", "keys", ONLY + "IdentityFile {site}/missing\nIdentityFile {site}/client", YES),
    Login("wrong, then right", "keys", ONLY + "IdentityFile {site}/other\nIdentityFile {site}/client", YES),
    Login("garbage, then right", "keys", ONLY + "IdentityFile {folder}/x\nIdentityFile {site}/client", YES,
          files={"x": "x"}),
    Login("garbage", "keys", ONLY + "IdentityFile {folder}/x", NO, files={"x": "x"}),
    Login("passphrase of rsa", "keys", ONLY + "IdentityFile {site}/locked_rsa", NO),
    Login("certificate", "authority", ONLY + "IdentityFile {site}/member", YES),
    Login("certificate of rsa", "authority", ONLY + "IdentityFile {site}/rsa", YES),
    Login("certificate of ecdsa", "authority", ONLY + "IdentityFile {site}/ecdsa", YES),
    Login("no certificate", "authority", ONLY + "IdentityFile {site}/client", NO),
    Login("certificate elsewhere", "authority",
          ONLY + "IdentityFile {site}/stray\nCertificateFile {site}/certificates/stray-cert.pub", YES),
    Login("certificate elsewhere, not named", "authority", ONLY + "IdentityFile {site}/stray", NO),
    Login("certificate expired", "authority", ONLY + "IdentityFile {site}/late", NO),
    Login("certificate expired, key known", "keys", ONLY + "IdentityFile {site}/late", YES),
    Login("certificate of another authority", "authority", ONLY + "IdentityFile {site}/foreign", NO),
    Login("passphrase", "keys", ONLY + "IdentityFile {site}/locked", NO),
    Login("passphrase, in the agent", "keys", ONLY + "IdentityFile {site}/locked", YES, agent=("unlocked",)),
    Login("agent", "keys", "IdentityFile {site}/missing", YES, agent=("other", "client")),
    Login("agent with another key", "keys", "IdentityFile {site}/missing", NO, agent=("other",)),
    Login("agent, but files only", "keys", ONLY + "IdentityFile {site}/other", NO, agent=("client",)),
    Login("agent with a certificate", "authority", "IdentityFile {site}/missing", YES, agent=("member",)),
    Login("agent with a certificate, files only", "authority", ONLY + "IdentityFile {site}/missing", NO,
          agent=("member",)),
    # what files include
    Login("included", "keys", "Include {folder}/more", YES, files={"more": ONLY + "IdentityFile {site}/client"}),
    Login("included by pattern", "keys", "Include {folder}/*.conf", YES,
          files={"b.conf": "IdentityFile {site}/client"}),
    Login("none included", "keys", ONLY + "Include {folder}/*.conf\nIdentityFile {site}/client", YES),
    Login("included for this host", "keys", ONLY + "Include {folder}/more", YES,
          files={"more": "Host other\nIdentityFile {site}/other\nHost tar*\nIdentityFile {site}/client"}),
    Login("included for another host", "keys", ONLY + "Include {folder}/more", NO,
          files={"more": "Host * !target\nIdentityFile {site}/client\nHost target\nIdentityFile {site}/other"}),
    Login("included by another host", "keys", ONLY + "IdentityFile {site}/other\nHost other\nInclude {folder}/more", NO,
          files={"more": "Host *\nIdentityFile {site}/client"}),
    Login("goes on after what is included", "keys", ONLY + "Include {folder}/more\nIdentityFile {site}/client", YES,
          files={"more": "Host other\nIdentityFile {site}/other"}),
    Login("included twice over", "keys", ONLY + "Include {folder}/more", YES,
          files={"more": "Match originalhost target\nInclude {folder}/most",
                 "most": "Match all\nIdentityFile {site}/client"}),
    Login("matched by user", "keys", ONLY + "Match user {user}\nIdentityFile {site}/client", YES),
    Login("matched by another", "keys",
          ONLY + "IdentityFile {site}/other\nMatch user x,y\nIdentityFile {site}/client", NO),
    Login("matched in the end", "keys", ONLY + "Match final all\nIdentityFile {site}/client", YES),
    Login("includes itself", "keys", ONLY + "IdentityFile {site}/client\nInclude {folder}/more", NO,
          files={"more": "Include {folder}/more"}),
    Login("port is no number", "keys", "IdentityFile {site}/client\nMatch all\nPort x", NO),
    Login("quote without an end", "keys", 'IdentityFile {site}/client\nHost "x', NO),
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """Keys, certificates, and the ports of servers."""

    folder: Path
    ports: dict[str, int]
    known: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    public = {name: make_key(folder / name, *options) for name, options in {**KEYS, "unlocked": ()}.items()}
    host = make_key(folder / "host")
    for name in ("authority", "another"):
        make_key(folder / name)
    for name, options in CERTIFIED.items():
        signer = folder / ("another" if name == "foreign" else "authority")
        words = ["ssh-keygen", "-q", "-s", str(signer), "-I", name, "-n", getpass.getuser(), *options.split()]
        subprocess.run([*words, str(folder / f"{name}.pub")], check=True)
    (folder / "certificates").mkdir()
    (folder / "stray-cert.pub").rename(folder / "certificates" / "stray-cert.pub")
    for suffix in ("", ".pub"):
        shutil.copy(folder / f"unlocked{suffix}", folder / f"locked{suffix}")
    make_key(folder / "locked_rsa", *KEYS["rsa"])
    for name in ("locked", "locked_rsa"):
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", folder / name], check=True)
    (folder / "authorized").write_text(public["client"] + public["late"] + public["unlocked"], encoding="utf-8")
    ports = {name: free_port() for name in ("keys", "authority")}
    settings = {
        ports["keys"]: f"HostKey {folder}/host",
        ports["authority"]: f"HostKey {folder}/host\nTrustedUserCAKeys {folder}/authority.pub\nAuthorizedKeysFile none",
    }
    with sshds(folder, settings):
        yield Site(folder, ports, host)


@contextlib.contextmanager
def agent(site: Site, folder: Path, keys: tuple[str, ...]) -> Iterator[str]:
    """The socket of an agent that holds those keys; of none, where there are none."""
    socket = folder / "agent"
    if not keys:
        yield str(socket)
        return
    started = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        assert eventually(socket.exists)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        for key in keys:
            subprocess.run(["ssh-add", "-q", site.folder / key], env=environment, check=True)
        yield str(socket)
    finally:
        started.terminate()
        started.wait()


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: login.name)
def test_holmes_gets_in_where_ssh_does(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: Login
) -> None:
    words = {"site": str(site.folder), "folder": str(tmp_path), "user": getpass.getuser()}
    for file, text in login.files.items():
        (tmp_path / file).write_text(text.format(**words) + "\n", encoding="utf-8")
    (tmp_path / "known").write_text(f"[127.0.0.1]:* {site.known}", encoding="utf-8")
    lines = ["Host target", "HostName 127.0.0.1", f"User {getpass.getuser()}"]
    lines += [f"UserKnownHostsFile {tmp_path}/known", "GlobalKnownHostsFile /dev/null", login.config.format(**words)]
    config = tmp_path / "config"
    config.write_text("\n".join([*lines, "Match all", f"Port {site.ports[login.server]}"]) + "\n", encoding="utf-8")
    with agent(site, tmp_path, login.agent) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        accepted, said = ssh_accepts(config)
        assert accepted == login.accepted, said
        if accepted:
            connect("target", Access(ssh_config=str(config))).close()
            return
        with pytest.raises(HolmesError) as raised:
            connect("target", Access(ssh_config=str(config)))
    assert any(each in raised.value.what for each in ("refused the login", "has a passphrase", str(tmp_path)))
    assert ("passphrase" in login.name) == ("has a passphrase" in raised.value.what)
    assert len(raised.value.hint) > 20
