"""A name in hosts.yaml that a shell would read as more than a name ends `holmes probe`, and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.errors import WRONG_USAGE
from tests.cli.conftest import Command


@pytest.mark.parametrize("key", ["address", "user"])
@pytest.mark.parametrize(
    "value", ["x;touch PWNED", "$(touch${IFS}PWNED)", "`touch PWNED`", "x\n  ProxyCommand y", "-F/x"]
)
def test_probe_of_hosts_yaml_with_such_a_name_ends_with_2_and_makes_nothing(
    command: Command, tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "ssh_config").write_text('Match exec "true %h %n %r"\n  ProxyCommand true %h %r\n', encoding="utf-8")
    quoted = value.replace("\n", "\\n")
    (tmp_path / "hosts.yaml").write_text(
        f'ssh_config: ssh_config\nhosts:\n- {{name: a1, {key}: "{quoted}"}}\n', encoding="utf-8"
    )
    before = sorted(tmp_path.iterdir())
    done = command("probe", "hosts.yaml")
    assert (done.code, done.stdout) == (WRONG_USAGE, "")
    assert f"hosts.0.{key}" in done.stderr
    assert sorted(tmp_path.iterdir()) == before
