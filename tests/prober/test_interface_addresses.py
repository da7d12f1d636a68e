"""Addresses are known where `ip` is missing, and nobody else is asked where it answered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holmes_core.records.access import Access
from prober.asking.commands import Command, cut, script
from prober.asking.recording import HostNotes
from prober.facts.netdev.interface_addresses import TOOL, addresses_command
from prober.facts.netdev.ip_tool import parse_ip
from prober.read_host import read_host

ACCESS = Access(transport="local", python=sys.executable)


def answered(before: str) -> str:
    """What the host says, after a first command that stands for `ip`."""
    text = script((Command(before), addresses_command(ACCESS)), "@@token")
    return subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("before", ["no-such-tool -j addr show", "false"])
def test_python_tells_the_addresses_where_ip_does_not(before: str) -> None:
    outputs = cut(answered(before), "@@token")
    assert [output.tool for output in outputs] == [before.split()[0], TOOL]
    (loopback,) = [netdev for netdev in parse_ip(outputs[1]) if netdev.name == "lo"]
    assert (loopback.kind, loopback.addresses) == ("loopback", ("127.0.0.1/8",))
    assert (loopback.up, loopback.mtu) == (True, 65536)
    (read,) = [netdev for netdev in read_host("a1", outputs, HostNotes(access=ACCESS)).netdevs if netdev.name == "lo"]
    assert read.addresses == ("127.0.0.1/8",)


def test_python_is_not_asked_where_ip_answered() -> None:
    assert TOOL not in answered("true")


def test_the_answer_is_what_ip_prints() -> None:
    asked = subprocess.run(["/bin/sh", "-c", addresses_command(ACCESS).shell], capture_output=True, check=True)
    for entry in json.loads(asked.stdout):
        assert entry.keys() >= {"ifname", "flags", "addr_info"}
