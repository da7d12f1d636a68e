"""`holmes trust` adds new keys after asking, and never replaces a known one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site

pytestmark = NEEDS_BED


def trust(site: Site, folder: Path, known: str, *options: str, answer: str = "") -> tuple[int, str, str]:
    """Exit code, output and the known-hosts file after `holmes trust` of a1 with `known` as that file before."""
    assert site.bed is not None
    file, config = folder / "known_hosts", folder / "ssh_config"
    file.write_text(known, encoding="utf-8")
    text = site.bed.ssh_config.read_text(encoding="utf-8")
    config.write_text(text.replace(str(site.bed.folder / "known_hosts"), str(file)), encoding="utf-8")
    hosts = folder / "hosts.yaml"
    hosts.write_text(yaml.safe_dump({"ssh_config": str(config), "hosts": ["a1"]}), encoding="utf-8")
    command = site.command("trust", str(hosts), *options)
    done = subprocess.run(command, input=answer, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr, file.read_text(encoding="utf-8")


def test_new_key_is_shown_and_added_only_after_yes(site: Site, tmp_path: Path) -> None:
    code, said, known = trust(site, tmp_path, "", answer="n\n")
    assert (code, known) == (1, "")
    assert "a1 (10.9.0.1): ssh-ed25519 SHA256:" in said
    code, said, known = trust(site, tmp_path, "", answer="y\n")
    assert code == 0
    assert known.startswith("10.9.0.1 ssh-ed25519 ")
    code, said, again = trust(site, tmp_path, known, "--yes")
    assert (code, again) == (0, known)
    assert "known already" in said


def test_changed_key_is_never_replaced(site: Site, tmp_path: Path) -> None:
    assert site.bed is not None
    other = site.bed.folder / "b1" / "host_key.pub"
    known = f"10.9.0.1 {' '.join(other.read_text(encoding='utf-8').split()[:2])}\n"
    code, said, after = trust(site, tmp_path, known, "--yes")
    assert (code, after) == (1, known)
    assert "known is ssh-ed25519 SHA256:" in said
    assert "`ssh-keygen -R 10.9.0.1 -f " in said
