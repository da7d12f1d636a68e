"""Every recording cut at every byte: what is read of the rest was in the whole, and nothing else.

The default tests cut at some bytes of each output, the slow ones at every twentieth, the exhaustive ones at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from holmes_core.records.devices import Netdev
from holmes_core.records.inventory import Host
from prober.asking.recording import Recorded
from prober.findings.tool_findings import tool_findings
from tests.prober.test_recordings import read, recorded, scenarios
from tests.seeds import few_of

SOME_CUTS = 6
LONG_CHARS = 9000  # of a longer output, only so much as a parser looks back is read again for every cut
LOOK_BACK_CHARS = 1500
TOLD_IN_FULL_OR_NOT_AT_ALL = (
    *("rate_gbps", "state", "phys_state", "netdev", "subnet_prefix", "sm_lid", "lid", "firmware", "hca_type"),
    *("board_id", "vendor_id", "node_type", "node_guid", "sys_image_guid", "port_guid", "pci_address", "active_mtu"),
    *("transport", "gid_choice"),
)
OF_GPUS = (
    *("name", "uuid", "memory_bytes", "pci_address", "driver_version", "mig", "compute_mode", "persistence_mode"),
    *("ecc_uncorrected", "pci_gen", "pci_gen_max", "pci_width", "pci_width_max", "numa_node", "cpus"),
)
OF_NETDEVS = ("up", "mtu", "speed_bytes_per_s", "driver", "firmware", "pci_address", "mac", "operstate")
OUTPUTS = [
    pytest.param(output, id=f"{folder.name}-{number}")
    for folder in {folder.name: folder for folder in reversed(scenarios())}.values()
    for number, output in enumerate(recorded(folder))
]


def positions(text: str, step: int) -> Iterator[int]:
    """Where to cut: everywhere, or at every `step`-th place; in a long text, once in each line that is there often."""
    told: set[str] = set()
    start = 0
    for line in text.splitlines(keepends=True):
        if len(text) <= LONG_CHARS or line not in told:
            yield from (start + at for at in range(len(line)) if (start + at) % step == 0)
        told.add(line)
        start += len(line)


def cuts(text: str, step: int) -> Iterator[str]:
    """The text up to each position; of a long one, the lines just before, below the heading they stand under."""
    for end in positions(text, step):
        start = text.rfind("\n", 0, max(0, end - LOOK_BACK_CHARS)) + 1
        if len(text) <= LONG_CHARS or start == 0:
            yield text[:end]
            continue
        heading = next((line for line in reversed(text[:start].splitlines()) if line[:1].strip()), "")
        yield f"{heading}\n{text[start:end]}"


def assert_only_of(whole: Host, cut: Host) -> None:
    """Ports, GPUs and interfaces of `cut` are those of `whole`, and what is known of them is the same or nothing."""
    nics = {(nic.device, nic.port): nic for nic in whole.nics}
    for nic in cut.nics:
        known = nics[nic.device, nic.port]
        assert nic.kind in (known.kind, "unknown")
        assert {gid.gid for gid in nic.gids} <= {gid.gid for gid in known.gids}
        assert_same_or_unknown(nic, known, TOLD_IN_FULL_OR_NOT_AT_ALL)
    gpus = {gpu.pci_address or gpu.index: gpu for gpu in whole.gpus}
    by_index = {gpu.index: gpu for gpu in whole.gpus}
    for gpu in cut.gpus:
        assert_same_or_unknown(gpu, gpus[gpu.pci_address] if gpu.pci_address else by_index[gpu.index], OF_GPUS)
    netdevs: dict[str, Netdev] = {netdev.name: netdev for netdev in whole.netdevs}
    for netdev in cut.netdevs:
        assert set(netdev.addresses) <= set(netdevs[netdev.name].addresses)
        assert_same_or_unknown(netdev, netdevs[netdev.name], OF_NETDEVS)


def assert_same_or_unknown(cut: object, whole: object, names: Iterable[str]) -> None:
    for name in names:
        assert getattr(cut, name) in (None, getattr(whole, name)), name


def check(output: Recorded, step: int) -> None:
    whole = read((output,))
    for text in cuts(output.text, step):
        shortened = Recorded(output.command, text, output.exit_code)
        assert_only_of(whole, read((shortened,)))
        tool_findings("host", (shortened,))


@pytest.mark.parametrize("output", few_of(80, OUTPUTS))
def test_what_is_left_of_a_cut_output_was_in_the_whole(output: Recorded) -> None:
    check(output, step=max(1, len(output.text) // SOME_CUTS))


@pytest.mark.parametrize(
    "step", [pytest.param(40, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("output", OUTPUTS)
def test_what_is_left_of_an_output_cut_at_any_byte_was_in_the_whole(output: Recorded, step: int) -> None:
    check(output, step)
