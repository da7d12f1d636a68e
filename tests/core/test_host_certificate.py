"""Certificates made to harm: what a host may show that no `ssh-keygen` makes is refused, and says why."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from holmes_core.errors import HostError
from holmes_core.remote.host_certificate import read_certificate
from holmes_core.remote.host_proof import UnknownHost, check_host
from holmes_core.remote.ssh_settings import SshSettings
from tests.seeds import few_of

CERTIFICATE = b"ssh-ed25519-cert-v01@openssh.com"
FOR_EVER = (1 << 64) - 1


def packed(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def new_key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


AUTHORITY = new_key()
HOST = paramiko.Ed25519Key(data=packed(b"ssh-ed25519", b"\3" * 32))  # its private half is not needed here


def made(
    *,
    signer: paramiko.PKey = AUTHORITY,
    authority: bytes | None = None,
    cert_type: bytes = CERTIFICATE,
    public: bytes = b"\3" * 32,
    kind: int = 2,
    principals: bytes = packed(b"10.0.0.1"),
    after_s: int = 0,
    before_s: int = FOR_EVER,
    critical: bytes = b"",
    extensions: bytes = b"",
    signature: Callable[[bytes], bytes] = lambda right: right,
) -> bytes:
    """A certificate of the host's key, honest but for what is named."""
    body = packed(cert_type, b"nonce" * 7, public) + (7).to_bytes(8, "big") + kind.to_bytes(4, "big")
    body += packed(b"an id", principals) + after_s.to_bytes(8, "big") + before_s.to_bytes(8, "big")
    body += packed(critical, extensions, b"", signer.asbytes() if authority is None else authority)
    return body + packed(signature(signer.sign_ssh_data(body).asbytes()))


def refusal(folder: Path, certificate: bytes, *lines: str, authority: paramiko.PKey = AUTHORITY) -> str:
    """What is said of a host that shows this certificate, where its authority is known; empty where it is believed."""
    known = (f"@cert-authority * {authority.get_name()} {authority.get_base64()}", *lines)
    file = folder / "known"
    file.write_text("".join(f"{line}\n" for line in known), encoding="utf-8")
    offered = paramiko.Ed25519Key(data=HOST.asbytes())
    offered.public_blob = paramiko.pkey.PublicBlob(CERTIFICATE.decode(), certificate)  # type: ignore[assignment]
    try:
        check_host("a1", SshSettings("10.0.0.1", 22, "bob", (), False, (file,), None, None), offered, None)
    except HostError as error:
        return f"{error}"
    return ""


NOW_S = int(time.time())
NOT_BELIEVED = {
    "wrong authority": (made(signer=new_key()), "is signed by ecdsa-sha2-nistp256 SHA256:"),
    "expired": (made(before_s=NOW_S - 1), "known:1, has expired at 20"),
    "expires now": (made(before_s=0), "has expired at 1970-01-01"),
    "not yet valid": (made(after_s=NOW_S + 3600), "known:1, is not valid before 20"),
    "valid in no calendar": (made(after_s=FOR_EVER - 1), "is not valid before second 18446744073709551614 since"),
    "wrong name": (made(principals=packed(b"10.0.0.2", b"a1")), "is for 10.0.0.2, a1, not for 10.0.0.1"),
    "part of the name": (made(principals=packed(b"10.0.0", b"10.0.0.11", b"")), "not for 10.0.0.1"),
    "pattern of names": (made(principals=packed(b"*")), "is for *, not for 10.0.0.1"),
    "for users": (made(kind=1), "is for a user, not for a host"),
    "of no kind": (made(kind=0), "is for a user, not for a host"),
    "critical option": (made(critical=packed(b"x", b"")), "has critical options"),
}
NOT_READ = {
    "empty": (b"", "cut short"),
    "of another type": (made(cert_type=b"ssh-dss-cert-v01@openssh.com"), "type ssh-dss are not known"),
    "name with a nul": (made(principals=packed(b"10.0.0.1\0.b.example")), "a NUL in a name"),
    "names cut short": (made(principals=b"\0\0\0\x0910.0.0.1"), "cut short"),
    "257 names": (made(principals=packed(b"10.0.0.1") * 257), "more than 256 names"),
    "options cut short": (made(critical=packed(b"x")), "cut short"),
    "extensions cut short": (made(extensions=b"\xff\xff\xff\xff"), "cut short"),
    "more after the end": (made() + b"\0", "1 bytes after its end"),
    "signed by another in its authority's name": (
        made(signer=new_key(), authority=AUTHORITY.asbytes()),
        "signature is not its authority's",
    ),
    "signature of nothing": (made(signature=lambda _: packed(b"ecdsa-sha2-nistp256", b"")), "cut short"),
    "signature of zeros": (made(signature=lambda _: packed(b"ecdsa-sha2-nistp256", packed(b"\0", b"\0"))), "signature"),
    "signature of another algorithm": (
        made(signature=lambda right: right.replace(b"nistp256", b"nistp384")),
        "signature",
    ),
    "signature says ed25519": (made(signature=lambda _: packed(b"ssh-ed25519", bytes(64))), "signature"),
    "authority is no key": (made(authority=b"\0" * 40), "authority"),
    "authority is a certificate": (made(authority=made()), "authority"),
    "authority is cut short": (made(authority=AUTHORITY.asbytes()[:-5]), "authority"),
    "of another key than the host uses": (made(public=b"\4" * 32), "is for another key than it uses"),
}


def test_honest_certificate_is_believed(tmp_path: Path) -> None:
    assert refusal(tmp_path, made()) == ""
    assert refusal(tmp_path, made(principals=b"")) == ""
    assert refusal(tmp_path, made(before_s=NOW_S + 3600, after_s=NOW_S - 3600, extensions=packed(b"x", b"\0"))) == ""


@pytest.mark.parametrize("name", NOT_BELIEVED)
def test_certificate_that_does_not_hold_leaves_the_key_itself(tmp_path: Path, name: str) -> None:
    certificate, said = NOT_BELIEVED[name]
    assert said in refusal(tmp_path, certificate)
    assert refusal(tmp_path, certificate, f"10.0.0.1 {HOST.get_name()} {HOST.get_base64()}") == ""


@pytest.mark.parametrize("name", NOT_READ)
def test_certificate_that_is_forged_or_broken_is_refused_though_the_key_is_known(tmp_path: Path, name: str) -> None:
    certificate, said = NOT_READ[name]
    assert said in refusal(tmp_path, certificate, f"10.0.0.1 {HOST.get_name()} {HOST.get_base64()}")


def test_certificate_cut_at_any_byte_or_with_any_bit_turned_is_refused(tmp_path: Path) -> None:
    whole = made()
    for at in range(len(whole)):
        with pytest.raises(ValueError, match=r"."):
            read_certificate(whole[:at])
    for at in range(len(whole)):
        assert refusal(tmp_path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) != "", at


@pytest.mark.parametrize("algorithm", few_of(2, [b"ssh-rsa", b"ssh-dss", b"sk-ssh-ed25519@openssh.com", b"none", b""]))
def test_signature_of_sha1_or_of_a_kind_not_checked_here_proves_nothing(tmp_path: Path, algorithm: bytes) -> None:
    signer = paramiko.RSAKey.generate(2048)
    certificate = made(signer=signer, signature=lambda _: packed(algorithm, bytes(256)))
    said = refusal(tmp_path, certificate, authority=signer)
    assert f"is signed by {algorithm.decode()}, which is not allowed" in said


@pytest.mark.parametrize("algorithm", ["rsa-sha2-256", "rsa-sha2-512"])
def test_rsa_authority_must_sign_by_sha2(tmp_path: Path, algorithm: str) -> None:
    signer = paramiko.RSAKey.generate(2048)
    body = made(signer=signer)
    signed = body[: -4 - int.from_bytes(packed(signer.sign_ssh_data(b"").asbytes())[:4], "big")]
    certificate = signed + packed(signer.sign_ssh_data(signed, algorithm).asbytes())
    assert refusal(tmp_path, certificate, authority=signer) == ""
    assert "signature is not its authority's" in refusal(tmp_path, certificate[:-1] + bytes([certificate[-1] ^ 1]))


@pytest.mark.parametrize("revoked", [AUTHORITY, HOST])
def test_revoked_authority_or_key_counts_before_the_certificate(tmp_path: Path, revoked: paramiko.PKey) -> None:
    line = f"@revoked * {revoked.get_name()} {revoked.get_base64()}"
    assert "is revoked by" in refusal(tmp_path, made(), line, f"10.0.0.1 {HOST.get_name()} {HOST.get_base64()}")


def test_unknown_and_changed_are_told_apart(tmp_path: Path) -> None:
    other = new_key()
    with pytest.raises(UnknownHost):
        check_host("a1", SshSettings("10.0.0.1", 22, "bob", (), False, (tmp_path / "none",), None, None), HOST, None)
    said = refusal(tmp_path, made(before_s=0), f"10.0.0.1 {other.get_name()} {other.get_base64()}")
    assert "known is ecdsa-sha2-nistp256" in said
    assert "has expired" in said
