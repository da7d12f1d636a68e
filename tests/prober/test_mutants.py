"""Recordings damaged as pastes are, of one host and of fleets: nothing is invented, nothing contradicts itself.

The default tests read some mutants, the slow ones 625, the exhaustive ones all others of 20,000.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from holmes_core.records.inventory import Host, Inventory
from prober.asking.recording import HostRecording, Recorded
from prober.fabrics.fabric import fabric_of
from prober.probe import inventory_of
from tests.prober.test_recordings import COPIES, recorded, scenarios
from tests.seeds import seeds

MAX_CHARS = 6000  # of an output; the long ones repeat themselves
RECORDINGS = [
    tuple(replace(output, text=output.text[:MAX_CHARS]) for output in recorded(folder))
    for folder in scenarios()
    if folder.parent == COPIES
]
DIGITS = ["٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "०१२३४५६७८९"]
PREFIXES = (
    *("sudo ", "kubectl exec -n gpu worker-0 -- ", "chroot /host ", "timeout 20 ", "root@n1:~# ", "pdsh -w n1 "),
    *("ssh n1 ", "nsenter -t 1 -n -- ", "docker exec -it a ", "srun -N1 ", "LC_ALL=C ", "/usr/bin/", "unknown ", "'"),
)

Edit = Callable[[str, random.Random], str]


def _line_by_line(edit: Callable[[str, random.Random], str], share: float) -> Edit:
    """An edit of some of the lines of a text."""

    def edited(text: str, choose: random.Random) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(edit(line, choose) if choose.random() < share else line for line in lines)

    return edited


def _in_another_script(line: str, choose: random.Random) -> str:
    return line.translate(str.maketrans("0123456789", choose.choice(DIGITS)))


def _split_somewhere(line: str, choose: random.Random) -> str:
    at = choose.randint(0, len(line))
    return f"{line[:at]}\n{line[at:]}"


def _cut(text: str, choose: random.Random) -> str:
    return text[: choose.randint(0, len(text))]


def _shuffled(text: str, choose: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    choose.shuffle(lines)
    return "".join(lines)


def _with_a_foreign_line(text: str, choose: random.Random) -> str:
    foreign = choose.choice(choose.choice(RECORDINGS)).text.splitlines(keepends=True) or ["\n"]
    lines = text.splitlines(keepends=True)
    lines.insert(choose.randint(0, len(lines)), choose.choice(foreign))
    return "".join(lines)


EDITS: Sequence[Edit] = (
    _line_by_line(lambda _line, _choose: "", 0.2),
    _line_by_line(lambda line, _choose: line.rstrip("\n"), 0.1),
    _line_by_line(lambda line, _choose: line.rstrip("\n") + " ", 0.1),
    _line_by_line(_split_somewhere, 0.1),
    _line_by_line(lambda line, _choose: line * 2, 0.2),
    _line_by_line(_in_another_script, 0.1),
    _line_by_line(lambda line, choose: re.sub(r"\d+", str(10 ** choose.randint(0, 12)), line, count=1), 0.1),
    _line_by_line(lambda line, _choose: line.replace(" ", "   "), 1.0),
    _line_by_line(lambda line, _choose: line.replace("\t", " "), 1.0),
    _line_by_line(lambda line, _choose: f"> {line}", 1.0),
    _line_by_line(lambda line, _choose: f"n1: {line}", 1.0),
    _line_by_line(lambda line, choose: f"{choose.choice(('n1', 'n2'))}: {line}", 1.0),
    _cut,
    _shuffled,
    _with_a_foreign_line,
    lambda text, _choose: f"root@n1:~# call\n{text}root@n1:~# ",
    lambda text, _choose: text.upper(),
    lambda text, _choose: text,
)


def mutant(choose: random.Random) -> dict[str, HostRecording]:
    """One to four hosts, each of one or two recordings put together, whose outputs are damaged and out of order."""
    fleet = {}
    for number in range(choose.choice((1, 1, 2, 3, 4))):
        outputs = [output for _ in range(choose.choice((1, 1, 2))) for output in choose.choice(RECORDINGS)]
        outputs += choose.choices(outputs, k=choose.choice((0, 0, 1, 2)))
        choose.shuffle(outputs)
        name = f"n{number + 1}"
        damaged = (_damaged(output, choose).of_host(name) for output in outputs[:12])
        fleet[name] = HostRecording(tuple(part for output in damaged for part in output.typed_commands()))
    return fleet


def _damaged(output: Recorded, choose: random.Random) -> Recorded:
    text = output.text
    for edit in choose.choices(EDITS, k=choose.choice((0, 1, 1, 2))):
        text = edit(text, choose)
    command = output.command if choose.random() < 0.9 else choose.choice(choose.choice(RECORDINGS)).command
    prefix = choose.choice(PREFIXES) if choose.random() < 0.3 else ""
    code = choose.choice((output.exit_code, output.exit_code, 0, 1, 127, None, -1))
    filtered = choose.choice((" | grep a", " | column -t", " | head", " | awk x")) if choose.random() < 0.1 else ""
    return Recorded(prefix + command + filtered, text, code)


def check(seed: int) -> None:
    fleet = mutant(random.Random(seed))
    inventory = inventory_of(fleet)
    assert inventory_of(fleet).to_json() == inventory.to_json()
    for host in inventory.hosts:
        assert_only_words_of(host, fleet[host.name].outputs)
        assert_ports_make_sense(host)
    assert_findings_are_of(inventory)


def assert_only_words_of(host: Host, outputs: Sequence[Recorded]) -> None:
    """Devices and interfaces are called by words that stand in an output, or in the command that asked for it."""
    text = "\n".join(part for output in outputs for part in (output.plain, output.command))
    words = {word.removesuffix("-rdm").removesuffix("-dgrm") for word in re.findall(r"[\w.-]+", text)}  # libfabric's
    for name in (*(nic.device for nic in host.nics), *(netdev.name for netdev in host.netdevs)):
        assert name in words
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name)


EFA_RAILS = (("EFA", "Active"), ("EFA", None))


def assert_ports_make_sense(host: Host) -> None:
    """A port is there once, in one state, within bounds; and a rail is usable."""
    ports = [(nic.device, nic.port) for nic in host.nics]
    assert len(set(ports)) == len(ports)
    for nic in host.nics:
        assert nic.usable_by_nccl_ib is not True or nic.state == "Active"
        assert (nic.port == 0) == (nic.kind == "Ethernet")
        assert nic.port <= 255
        assert nic.rate_gbps is None or 0 <= nic.rate_gbps <= 3200
    for rail in fabric_of(host).rails:  # the plugin's rails are no ports of NCCL's own, and libfabric says no state
        assert rail.state == "Active" if rail.usable_by_nccl_ib else (rail.kind, rail.state) in EFA_RAILS
    assert len({netdev.name for netdev in host.netdevs}) == len(host.netdevs)
    assert [gpu.index for gpu in host.gpus] == sorted({gpu.index for gpu in host.gpus})


def assert_findings_are_of(inventory: Inventory) -> None:
    """Findings name hosts of the inventory, and say what was seen."""
    names = {host.name for host in inventory.hosts}
    for finding in inventory.findings:
        assert set(finding.hosts) <= names
        assert finding.evidence


def test_some_mutants() -> None:
    for seed in range(10):
        check(seed)


@pytest.mark.parametrize("block", seeds(160, few=0))
def test_20000_mutants(block: int) -> None:
    for seed in range(125 * block, 125 * (block + 1)):
        check(seed)
