"""Real sshd, `ssh` and Holmes with the same configuration: Holmes believes whom `ssh` believes, and nobody else."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest

from holmes_core.errors import HostError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
from holmes_core.remote.host_keys import offered_key
from holmes_core.remote.host_proof import UnknownHost
from tests.core.ssh_servers import make_key, needs_sshd, sshds
from tests.free_ports import free_port

pytestmark = [
    pytest.mark.process,
    needs_sshd,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here"),
]
# How each server's certificate is made by `ssh-keygen -s`: the authority, the host's key, and the options.
CERTIFICATES = {
    "good": ("ca", "ed", "-h -n 127.0.0.1,localhost,compute.7"),
    "any": ("ca", "ed", "-h"),
    "wild": ("ca", "ed", "-h -n 10.*,127.0.0.?"),
    "elsewhere": ("ca", "ed", "-h -n b.example,[127.0.0.1]:22"),
    "expired": ("ca", "ed", "-h -n 127.0.0.1 -V 20200101:20200102"),
    "early": ("ca", "ed", "-h -n 127.0.0.1 -V 20900101:20900102"),
    "user": ("ca", "ed", "-n 127.0.0.1"),
    "critical": ("ca", "ed", "-h -n 127.0.0.1 -O critical:force-command=true"),
    "extended": ("ca", "ed", "-h -n 127.0.0.1 -O extension:a@b.example=c"),
    "rsa-key": ("ca", "rsa", "-h -n 127.0.0.1"),
    "ecdsa-key": ("ca", "ecdsa", "-h -n 127.0.0.1"),
    "by-rsa": ("ca_rsa", "ed", "-h -n 127.0.0.1 -t rsa-sha2-256"),
    "by-sha1": ("ca_rsa", "ed", "-h -n 127.0.0.1 -t ssh-rsa"),
    "by-ecdsa": ("ca_ecdsa", "ed", "-h -n 127.0.0.1"),
}
PLAIN = {"ed": ("ed",), "rsa": ("rsa",), "ecdsa": ("ecdsa",), "two": ("ed", "rsa"), "first": ("other",)}


@dataclass(frozen=True)
class Cell:
    """One question. In its texts stand `{name}` and `{port}` for the server's, `{ed}` for a key."""

    name: str
    server: str
    known: str
    accepted: bool
    says: tuple[str, ...] = ()
    """What Holmes says when it refuses, with `{known}` the known-hosts file."""
    config: str = ""
    shared: str = ""
    """GlobalKnownHostsFile."""
    files: dict[str, str] = field(default_factory=dict)


YES, NO = True, False
CHANGED, UNKNOWN, REVOKED = "known is ", "is not known: ", "is revoked by "
CELLS = (
    # plain keys and names
    Cell("known", "ed", "{name} {ed}", YES),
    Cell("nothing known", "ed", "", NO, (UNKNOWN, "no line for {name} in {known}")),
    Cell("another host", "ed", "[127.0.0.2]:{port} {ed}", NO, (UNKNOWN,)),
    Cell("another port", "ed", "[127.0.0.1]:1 {ed}", NO, (UNKNOWN,)),
    Cell("no port", "ed", "127.0.0.1 {ed}", YES),
    Cell("no port, changed", "ed", "127.0.0.1 {other}", NO, (CHANGED, "{known}:1")),
    Cell("no port, and changed with", "ed", "127.0.0.1 {ed}\n{name} {other}", NO, (CHANGED, "{known}:2")),
    Cell("changed", "ed", "# a comment\n{name} {other}", NO, (CHANGED, "{known}:2")),
    Cell("two keys of a type", "ed", "{name} {other}\n{name} {ed}", YES),
    Cell("only a key of another type", "ed", "{name} {rsa}", NO, (CHANGED, "{known}:1")),
    Cell("the second of two keys", "two", "{name} {rsa}", YES),
    Cell("rsa", "rsa", "{name} {rsa}", YES),
    Cell("ecdsa", "ecdsa", "{name} {ecdsa}", YES),
    Cell("lines not read", "ed", "@new * {ed}\n{name} ssh-ed25519 !!!\nx\n\0\n|1|x|y {ed}\n{name} {ed}", YES),
    Cell("hashed", "ed", "{hashed} {ed}", YES),
    Cell("hashed, changed", "ed", "{hashed} {other}", NO, (CHANGED, "{known}:1")),
    Cell("hashed, another host", "ed", "{hashed_other} {ed}", NO, (UNKNOWN,)),
    Cell("hashed, cut short", "ed", "|1|AAAA|AAAA {ed}", NO, (UNKNOWN,)),
    Cell("pattern", "ed", "[127.0.0.?]:* {ed}", YES),
    Cell("pattern, changed", "ed", "[127.*]:{port} {other}", NO, (CHANGED, "{known}:1")),
    Cell("negated", "ed", "*,!{name},!127.0.0.1 {ed}", NO, (UNKNOWN,)),
    Cell("negated with the port alone", "ed", "*,!{name} {ed}", YES),
    Cell("negated, another", "ed", "!b.example,[127.*]:{port} {ed}", YES),
    Cell("nothing but negated", "ed", "!b.example {ed}", NO, (UNKNOWN,)),
    Cell("name in capitals", "ed", "[LOCALHOST]:{port} {ed}", YES, config="HostName LocalHost"),
    Cell("second file", "ed", "", YES, config="UserKnownHostsFile {folder}/a {folder}/b",
         files={"b": "{name} {ed}"}),
    Cell("second file after a changed", "ed", "", YES, config="UserKnownHostsFile {folder}/a {folder}/b",
         files={"a": "{name} {other}", "b": "{name} {ed}"}),
    Cell("shared file", "ed", "", YES, shared="{name} {ed}"),
    Cell("shared file, changed", "ed", "", NO, (CHANGED, "{shared}:1"), shared="{name} {other}"),
    Cell("no file", "ed", "", NO, (UNKNOWN,), config="UserKnownHostsFile none"),
    Cell("alias", "ed", "compute.7 {ed}", YES, config="HostKeyAlias compute.7"),
    Cell("alias, known by address", "ed", "{name} {ed}\n127.0.0.1 {ed}", NO, ("no line for compute.7",),
         config="HostKeyAlias compute.7"),
    Cell("alias with a port", "ed", "[compute.7]:{port} {ed}", NO, (UNKNOWN,), config="HostKeyAlias compute.7"),
    Cell("alias hashed, changed", "ed", "{hashed_alias} {other}", NO, (CHANGED, "-R compute.7"),
         config="HostKeyAlias compute.7"),
    Cell("not asked", "ed", "", NO, (UNKNOWN,), config="StrictHostKeyChecking no"),
    Cell("new ones taken", "ed", "", NO, (UNKNOWN,), config="StrictHostKeyChecking accept-new"),
    Cell("not asked, changed", "ed", "{name} {other}", NO, (CHANGED,), config="StrictHostKeyChecking no"),
    Cell("algorithm of another key", "two", "{name} {ed}", NO, (CHANGED,), config="HostKeyAlgorithms rsa-sha2-512"),
    Cell("algorithm taken away", "two", "{name} {rsa}", YES, config="HostKeyAlgorithms -ssh-ed25519*"),
    Cell("algorithm first", "two", "{name} {ed}", NO, (CHANGED,), config="HostKeyAlgorithms ^rsa-sha2-256"),
    Cell("key too short", "rsa", "{name} {rsa}", NO, ("RequiredRSASize is 4096",), config="RequiredRSASize 4096"),
    Cell("command", "ed", "", YES, config="KnownHostsCommand /bin/echo %H {ed}"),
    Cell("command, changed", "ed", "", NO, (CHANGED, "remove line 1 of KnownHostsCommand /bin/echo"),
         config="KnownHostsCommand /bin/echo %H {other}"),
    Cell("command, certified", "good", "", YES, config="KnownHostsCommand /bin/echo @cert-authority * {ca}"),
    Cell("command prints a file", "ed", "{name} {rsa}", YES, config="KnownHostsCommand /bin/cat {folder}/more",
         files={"more": "x\n{name} {ed}"}),
    Cell("command of another host", "ed", "", NO, (UNKNOWN,), config="KnownHostsCommand /bin/echo b.example {ed}"),
    Cell("command fails", "ed", "{name} {ed}", NO, ("KnownHostsCommand", "exit status 1"),
         config="KnownHostsCommand /bin/false"),
    Cell("command is missing", "ed", "{name} {ed}", YES, config="KnownHostsCommand /nowhere/x"),
    Cell("command without its folder", "ed", "{name} {ed}", YES, config="KnownHostsCommand false"),
    # revoked
    Cell("revoked", "ed", "{name} {ed}\n@revoked {name} {ed}", NO, (REVOKED, "{known}:2")),
    Cell("revoked everywhere", "ed", "@revoked * {ed}\n{name} {ed}", NO, (REVOKED, "{known}:1")),
    Cell("revoked hashed", "ed", "{name} {ed}\n@revoked {hashed} {ed}", NO, (REVOKED, "{known}:2")),
    Cell("revoked for another host", "ed", "{name} {ed}\n@revoked b.example {ed}", YES),
    Cell("revoked another key", "ed", "{name} {ed}\n@revoked * {other}", YES),
    Cell("revoked in the shared file", "ed", "{name} {ed}", NO, (REVOKED, "{shared}:1"), shared="@revoked * {ed}"),
    Cell("revoked only", "ed", "@revoked {name} {ed}", NO, (REVOKED,)),
    Cell("revoked by a file", "ed", "{name} {ed}", NO, (REVOKED, "{folder}/gone"),
         config="RevokedHostKeys {folder}/gone",
         files={"gone": "# lost\n\n{other}\n{ed} a comment"}),
    Cell("file revokes another", "ed", "{name} {ed}", YES,
         config="RevokedHostKeys {folder}/gone", files={"gone": "{other}"}),
    Cell("file is missing", "ed", "{name} {ed}", NO, ("{folder}/gone", "cannot be read"),
         config="RevokedHostKeys {folder}/gone"),
    Cell("file is garbage", "ed", "{name} {ed}", NO, ("no key in line 2",), config="RevokedHostKeys {folder}/gone",
         files={"gone": "{other}\nnot a key\n"}),
    Cell("revoked by a KRL", "ed", "{name} {ed}", NO, (REVOKED, "krl-ed"), config="RevokedHostKeys {site}/krl-ed"),
    Cell("KRL of another", "ed", "{name} {ed}", YES, config="RevokedHostKeys {site}/krl-other"),
    Cell("KRL cut short", "ed", "{name} {ed}", NO, ("is a KRL that",), config="RevokedHostKeys {site}/krl-cut"),
    # certificates
    Cell("certified", "good", "@cert-authority * {ca}", YES),
    Cell("certified, by tabs and a space", "good", "@cert-authority\t*\t{ca}", NO, (UNKNOWN,)),
    Cell("certified, by tabs", "good", "@cert-authority\t*\t{ca_by_tabs}", YES),
    Cell("certified for this name", "good", "@cert-authority {name} {ca}", YES),
    Cell("certified without port", "good", "@cert-authority 127.0.0.1 {ca}", YES),
    Cell("certified for other names", "good", "@cert-authority b.example {ca}", NO, (UNKNOWN, "no @cert-authority")),
    Cell("certified but negated", "good", "@cert-authority *,!*127.0.0.1* {ca}", NO, (UNKNOWN,)),
    Cell("certified by hashed name", "good", "@cert-authority {hashed} {ca}", YES),
    Cell("certified by another", "good", "@cert-authority * {other}", NO,
         (UNKNOWN, "is signed by ssh-ed25519 SHA256:")),
    Cell("certified, authority as a key", "good", "* {ca}", NO, (CHANGED,)),
    Cell("certified by the second", "good", "@cert-authority * {other}\n@cert-authority * {ca}", YES),
    Cell("certified in the shared file", "good", "", YES, shared="@cert-authority * {ca}"),
    Cell("certified, its key changed", "good", "{name} {other}\n@cert-authority * {ca}", YES),
    Cell("certified, only the key known", "good", "{name} {ed}", YES),
    Cell("certified for all", "any", "@cert-authority * {ca}", YES),
    Cell("certified by pattern", "wild", "@cert-authority * {ca}", NO, ("{known}:1", "is for 10.*, 127.0.0.?, not")),
    Cell("certified elsewhere", "elsewhere", "@cert-authority * {ca}", NO,
         ("{known}:1", "is for b.example", "not for 127.0.0.1")),
    Cell("certified alias", "good", "@cert-authority compute.7 {ca}", YES, config="HostKeyAlias compute.7"),
    Cell("certified, other alias", "good", "@cert-authority * {ca}", NO, ("not for compute.8",),
         config="HostKeyAlias compute.8"),
    Cell("certified name in capitals", "good", "@cert-authority * {ca}", YES, config="HostName LOCALHOST"),
    Cell("expired", "expired", "@cert-authority * {ca}", NO, ("{known}:1", "has expired at 2020-01-02")),
    Cell("expired, key known", "expired", "@cert-authority * {ca}\n{name} {ed}", YES),
    Cell("expired, key changed", "expired", "@cert-authority * {ca}\n{name} {other}", NO,
         (CHANGED, "{known}:2", "has expired")),
    Cell("not yet valid", "early", "@cert-authority * {ca}", NO, ("{known}:1", "is not valid before 2090-01-01")),
    Cell("for users", "user", "@cert-authority * {ca}", NO, ("{known}:1", "is for a user, not for a host")),
    Cell("critical option", "critical", "@cert-authority * {ca}", NO, ("{known}:1", "critical options")),
    Cell("extension", "extended", "@cert-authority * {ca}", YES),
    Cell("rsa key certified", "rsa-key", "@cert-authority * {ca}", YES),
    Cell("ecdsa key certified", "ecdsa-key", "@cert-authority * {ca}", YES),
    Cell("certified by rsa", "by-rsa", "@cert-authority * {ca_rsa}", YES),
    Cell("certified by ecdsa", "by-ecdsa", "@cert-authority * {ca_ecdsa}", YES),
    Cell("certified by sha1", "by-sha1", "@cert-authority * {ca_rsa}", NO, ("{known}:1", "is signed by ssh-rsa")),
    Cell("certified by sha1, key known", "by-sha1", "@cert-authority * {ca_rsa}\n{name} {ed}", YES),
    Cell("signature not allowed", "by-rsa", "@cert-authority * {ca_rsa}", NO, ("is signed by rsa-sha2-256",),
         config="CASignatureAlgorithms ssh-ed25519"),
    Cell("certificates not asked for", "good", "@cert-authority * {ca}", NO, (UNKNOWN, "shows no certificate"),
         config="HostKeyAlgorithms ssh-ed25519"),
    Cell("no certificate shown", "ed", "@cert-authority * {ca}", NO, (UNKNOWN, "shows no certificate", "{known}:1")),
    Cell("authority revoked", "good", "@cert-authority * {ca}\n@revoked * {ca}", NO, (REVOKED, "{known}:2")),
    Cell("authority revoked, key known", "good", "{name} {ed}\n@revoked * {ca}", NO, (REVOKED, "{known}:2")),
    Cell("certified key revoked", "good", "@cert-authority * {ca}\n@revoked * {ed}", NO, (REVOKED, "{known}:2")),
    Cell("authority revoked by a file", "good", "@cert-authority * {ca}", NO, (REVOKED, "{folder}/gone"),
         config="RevokedHostKeys {folder}/gone", files={"gone": "{ca}"}),
    Cell("certificate revoked by a KRL", "good", "@cert-authority * {ca}", NO, (REVOKED,),
         config="RevokedHostKeys {site}/krl-good"),
    Cell("KRL of another certificate", "any", "@cert-authority * {ca}", YES, config="RevokedHostKeys {site}/krl-good"),
    Cell("authority revoked by a KRL", "good", "@cert-authority * {ca}", NO, (REVOKED,),
         config="RevokedHostKeys {site}/krl-ca"),
    # jumps
    Cell("jump", "ed", "{first_name} {other}\n{name} {ed}", YES, config="ProxyJump first"),
    Cell("jump unknown", "ed", "{name} {ed}", NO, (UNKNOWN,), config="ProxyJump first"),
    Cell("behind a jump unknown", "ed", "{first_name} {other}", NO, (UNKNOWN,), config="ProxyJump first"),
    Cell("certified jump and target", "good", "@cert-authority * {ca}", YES, config="ProxyJump any"),
    Cell("expired jump", "good", "@cert-authority * {ca}", NO, ("has expired",), config="ProxyJump expired"),
    Cell("three jumps", "rsa-key", "@cert-authority * {ca}\n{first_name} {other}", YES,
         config="ProxyJump good,first,any"),

            Cell("three jumps, the second revoked", "rsa-key",
         "@cert-authority * {ca}\n{first_name} {other}\n@revoked * {other}", NO,
         (REVOKED,), config="ProxyJump good,first,any"),
    Cell("none of the jumps", "ed", "{name} {ed}", YES, config="ProxyJump none"),
    Cell("jump by command", "ed", "{name} {ed}", YES, config="ProxyCommand ssh -F {folder}/config -W %h:%p ed"),
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """The servers, and what may be said of them."""

    folder: Path
    ports: dict[str, int]
    words: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    words = {name: _words(make_key(folder / name)) for name in ("ed", "other", "ca")}
    for name in ("rsa", "ca_rsa"):
        words[name] = _words(make_key(folder / name, "-t", "rsa", "-b", "2048"))
    for name in ("ecdsa", "ca_ecdsa"):
        words[name] = _words(make_key(folder / name, "-t", "ecdsa"))
    (folder / "authorized").write_text(make_key(folder / "client"), encoding="utf-8")
    ports = {name: free_port() for name in (*PLAIN, *CERTIFICATES)}
    settings = {ports[name]: "".join(f"HostKey {folder}/{key}\n" for key in keys) for name, keys in PLAIN.items()}
    for serial, (name, (authority, key, options)) in enumerate(CERTIFICATES.items(), 1):
        certificate = _certify(folder, name, serial, authority, key, options)
        settings[ports[name]] = f"HostKey {folder}/{key}\nHostCertificate {certificate}\n"
    for krl, key in {
        "krl-ed": "ed.pub",
        "krl-other": "other.pub",
        "krl-ca": "ca.pub",
        "krl-good": "good-cert.pub",
    }.items():
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", folder / krl, folder / key], check=True)
    (folder / "krl-cut").write_bytes((folder / "krl-other").read_bytes()[:-9])
    with sshds(folder, settings):
        yield Site(folder, ports, words)


def _certify(folder: Path, name: str, serial: int, authority: str, key: str, options: str) -> Path:
    """A certificate in a file of its own; ssh-keygen writes it beside the public key."""
    public = folder / f"{name}.pub"
    public.write_bytes((folder / f"{key}.pub").read_bytes())
    words = [
        "ssh-keygen",
        "-q",
        "-s",
        str(folder / authority),
        "-I",
        name,
        "-z",
        str(serial),
        *options.split(),
        str(public),
    ]
    subprocess.run(words, check=True)
    return folder / f"{name}-cert.pub"


def _words(public: str) -> str:
    return " ".join(public.split()[:2])


def _written(site: Site, folder: Path, cell: Cell) -> tuple[Path, dict[str, str]]:
    """The SSH configuration of a cell, and what its words stand for."""
    port = site.ports[cell.server]
    name = f"[127.0.0.1]:{port}"
    hashed = {
        "hashed": paramiko.HostKeys.hash_host(name),
        "hashed_other": paramiko.HostKeys.hash_host("b.example"),
        "hashed_alias": paramiko.HostKeys.hash_host("compute.7"),
    }
    words = {
        **(site.words | hashed | {"ca_by_tabs": site.words["ca"].replace(" ", "\t")}),
        **{"name": name, "port": str(port), "first_name": f"[127.0.0.1]:{site.ports['first']}"},
        **{"known": f"{folder}/known", "shared": f"{folder}/shared", "folder": str(folder), "site": str(site.folder)},
    }
    for file, text in {"known": cell.known, "shared": cell.shared, **cell.files}.items():
        (folder / file).write_text(text.format(**words) + "\n", encoding="utf-8")
    lines = ["Host target", cell.config.format(**words), f"Port {port}", "HostName 127.0.0.1"]
    for host, its_port in site.ports.items():
        lines += [f"Host {host}", f"Port {its_port}", "HostName 127.0.0.1"]
    lines += ["Host *", f"User {getpass.getuser()}", f"IdentityFile {site.folder}/client", "IdentitiesOnly yes"]
    lines += [f"UserKnownHostsFile {folder}/known", f"GlobalKnownHostsFile {folder}/shared", "LogLevel VERBOSE"]
    (folder / "config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "config", words


def ssh_accepts(config: Path) -> tuple[bool, str]:
    """Whether `ssh` logs in, and what it says. Always strict, as Holmes is; jumps ask nobody either."""
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "target", "true"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 255), done.stderr
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_holmes_believes_whom_ssh_believes(site: Site, tmp_path: Path, cell: Cell) -> None:
    config, words = _written(site, tmp_path, cell)
    accepted, said = ssh_accepts(config)
    assert accepted == cell.accepted, said
    access = Access(ssh_config=str(config))
    if accepted:
        connect("target", access).close()
        assert offered_key("target", access).is_known
        return
    with pytest.raises(HostError) as raised:
        connect("target", access)
    error = raised.value
    if isinstance(error, UnknownHost) and error.host == "target":  # nothing but what is unknown can come to be trusted
        assert not offered_key("target", access).is_known
    else:
        with pytest.raises(HostError):
            offered_key("target", access)
    assert error.kind in ("key unknown", "key changed")
    assert any(each in error.evidence for each in ("127.0.0.1:", str(tmp_path), str(site.folder)))
    assert [each for each in cell.says if each.format(**words) not in f"{error}"] == []
    assert len(error.hint) > 20
    assert "keyscan" not in f"{error}"
