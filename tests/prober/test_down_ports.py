"""Of ports without a link, those that should be rails refuse launch; spare ports and cards for other ends do not."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.rails.choose_rails import with_rails
from prober.rails.stated_rails import stated_rail_findings
from tests.builders import railed_hosts
from tests.builders.host_facts import audited, nic, nics, roce, severities
from tests.builders.railed_hosts import host

DOWN: dict[str, Any] = {"state": "Down", "phys_state": "Polling", "hca_type": "MT4129"}


def card(first: str, second: str, guid: str, *states: str) -> tuple[Nic, ...]:
    """A card with two ports."""
    ports = zip((first, second), states, strict=True)
    return tuple(nic(name, state=state, hca_type="MT4129", sys_image_guid=guid) for name, state in ports)


def test_a_card_for_storage_far_from_the_gpus_does_not_refuse_and_a_rail_beside_one_does() -> None:
    rails = (
        railed_hosts.infiniband_port("mlx5_0", board_id="MT_1"),
        railed_hosts.infiniband_port("mlx5_1", board_id="MT_1"),
    )
    far, near = railed_hosts.infiniband_port("mlx5_4", **DOWN), railed_hosts.infiniband_port("mlx5_2", **DOWN)
    on_switches = railed_hosts.gpus_beside(("mlx5_0",), ("mlx5_1",), ("mlx5_2",))
    assert severities("NIC-PORT-DOWN", host(nics=(*rails, far, near), gpus=on_switches)) == ["F", "I"]


@pytest.mark.parametrize(("board", "severity"), [("MT_1", "F"), ("MT_2", "I"), (None, "F")])
def test_where_no_way_is_known_the_board_tells_a_rail(board: str | None, severity: str) -> None:
    rail, down = nic(hca_type="MT4129", board_id="MT_1"), nic("mlx5_1", board_id=board, **DOWN)
    assert severities("NIC-PORT-DOWN", nics(rail, down)) == [severity]


def test_a_second_port_is_spare_where_other_cards_have_spare_ones_too() -> None:
    one, two = card("mlx5_0", "mlx5_1", "a", "Active", "Down"), card("mlx5_2", "mlx5_3", "b", "Active", "Down")
    assert severities("NIC-PORT-DOWN", nics(*one, *two)) == ["I", "I"]


def test_a_second_port_is_a_lost_rail_where_all_other_cards_use_both() -> None:
    one, two = card("mlx5_0", "mlx5_1", "a", "Active", "Down"), card("mlx5_2", "mlx5_3", "b", "Active", "Active")
    assert severities("NIC-PORT-DOWN", nics(*one, *two)) == ["F"]


def test_functions_of_one_pci_device_are_one_card() -> None:
    used, spare = "0000:98:00.0", "0000:98:00.1"
    ports = nic(hca_type="MT4117", pci_address=used), nic("mlx5_1", pci_address=spare, **{**DOWN, "hca_type": "MT4117"})
    assert severities("NIC-PORT-DOWN", nics(*ports)) == ["I"]


def test_cards_that_nobody_cabled_do_not_refuse() -> None:
    assert severities("NIC-PORT-DOWN", nics(nic(**DOWN)), nics(nic(**DOWN), name="b")) == ["W", "W"]


def test_a_host_that_lost_all_rails_refuses_where_others_have_theirs_and_is_told_once() -> None:
    lost, sound = nics(nic(**DOWN), name="b"), nics(nic(hca_type="MT4129"))
    assert severities("NIC-PORT-DOWN", sound, lost) == ["F"]
    other_cards = nics(nic(hca_type="MT4123"))
    assert severities("NIC-PORT-DOWN", other_cards, lost) == ["W"]


def stated(*patterns: str, alive: int = 2) -> Host:
    """Ports mlx5_0 and on, of which the first `alive` are Active, below the `rails:` of hosts.yaml."""
    ports = [nic(f"mlx5_{number}", hca_type="MT4129") for number in range(alive)]
    ports += [nic(f"mlx5_{number}", **DOWN) for number in range(alive, 4)]
    return with_rails(nics(*ports), patterns)


def test_a_port_that_hosts_yaml_leaves_out_is_no_lost_rail_and_one_that_it_names_is() -> None:
    assert severities("NIC-PORT-DOWN", stated("mlx5_[0-1]")) == ["I", "I"]
    assert severities("NIC-PORT-DOWN", stated("mlx5_[0-2]")) == ["F", "I"]


def test_a_port_of_another_card_is_a_lost_rail_where_hosts_yaml_names_it() -> None:
    other = nic("mlx5_9", **{**DOWN, "hca_type": "MT4123"})
    assert severities("NIC-PORT-DOWN", with_rails(nics(nic(hca_type="MT4129"), other))) == ["I"]
    assert severities("NIC-PORT-DOWN", with_rails(nics(nic(hca_type="MT4129"), other), ("mlx5_*",))) == ["F"]


def test_a_spare_port_is_a_lost_rail_where_hosts_yaml_names_it() -> None:
    one, two = card("mlx5_0", "mlx5_1", "a", "Active", "Down"), card("mlx5_2", "mlx5_3", "b", "Active", "Down")
    assert severities("NIC-PORT-DOWN", with_rails(nics(*one, *two), ("mlx5_[0-2]",))) == ["F", "I"]


def test_ports_left_out_by_hosts_yaml_make_no_host_that_lost_all_rails() -> None:
    lost = with_rails(nics(nic(**DOWN), name="b"), ("mlx5_7",))
    assert severities("NIC-PORT-DOWN", nics(nic(hca_type="MT4129")), lost) == ["I"]


def test_a_named_port_without_a_link_is_told_once() -> None:
    one_down = stated("mlx5_[0-2]")
    assert list(stated_rail_findings(one_down, ("mlx5_[0-2]",))) == []
    nothing_left = stated("mlx5_[2-3]")
    assert {finding.severity for finding in stated_rail_findings(nothing_left, ("mlx5_[2-3]",))} == {"F"}


@pytest.mark.parametrize("machine", [stated("mlx5_*"), nics(nic(hca_type="MT4129"), nic("mlx5_1", **DOWN))])
def test_what_brings_a_port_up_also_says_how_to_state_that_it_is_no_rail(machine: Host) -> None:
    remedies = [finding.remedy for finding in audited(machine) if finding.rule == "NIC-PORT-DOWN"]
    assert remedies
    assert all("`rails:` in hosts.yaml" in remedy for remedy in remedies)


@pytest.mark.parametrize(
    ("rail", "down", "severity"),
    [
        (roce("mlx5_8", hca_type="MT4125", rate_gbps=100.0), {"hca_type": "MT4129"}, "W"),
        (roce("mlx5_8", hca_type="MT41692"), {"hca_type": "MT4129"}, "W"),
        (roce("mlx5_8", hca_type="MT4129"), {"hca_type": "MT4125"}, "I"),
        (roce("mlx5_8", hca_type="MT4125"), {"hca_type": "MT4129", "virtual_function": True}, "I"),
    ],
)
def test_compute_rails_that_are_all_down_behind_a_front_end_warn(
    rail: Nic, down: dict[str, Any], severity: str
) -> None:
    ports = [roce(f"mlx5_{i}", f"ens{i}", state="Down", sys_image_guid=str(i), **down) for i in range(4)]
    found = severities("NIC-PORT-DOWN", nics(rail, *ports))
    assert set(found) == {severity}
    assert len(found) == (1 if severity == "W" else 4)


def test_a_down_port_of_another_namespace_is_no_lost_rail_in_a_container() -> None:
    own = roce("mlx5_0", "net1", hca_type="MT4129")
    other = nic("mlx5_1", "RoCE", state="Down", hca_type="MT4129")
    assert severities("NIC-PORT-DOWN", nics(own, other, container="kubernetes")) == ["I"]
    assert severities("NIC-PORT-DOWN", nics(own, other, container="none")) == ["F"]
    (alone,) = (found for found in audited(nics(other, container="kubernetes")) if found.rule == "NIC-NONE-USABLE")
    assert "device plugin" in alone.remedy
