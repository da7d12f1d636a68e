"""Of ports without a link, those that should be rails refuse launch; spare ports and cards for other ends do not."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.devices import Nic
from tests.prober import machines
from tests.prober.machines import host
from tests.prober.made_hosts import nic, nics, severities

DOWN: dict[str, Any] = {"state": "Down", "phys_state": "Polling", "hca_type": "MT4129"}


def card(first: str, second: str, guid: str, *states: str) -> tuple[Nic, ...]:
    """A card with two ports."""
    ports = zip((first, second), states, strict=True)
    return tuple(nic(name, state=state, hca_type="MT4129", sys_image_guid=guid) for name, state in ports)


def test_a_card_for_storage_far_from_the_gpus_does_not_refuse_and_a_rail_beside_one_does() -> None:
    rails = (machines.ib("mlx5_0", board_id="MT_1"), machines.ib("mlx5_1", board_id="MT_1"))
    far, beside = machines.ib("mlx5_4", **DOWN), machines.ib("mlx5_2", **DOWN)
    on_switches = machines.gpus(("mlx5_0",), ("mlx5_1",), ("mlx5_2",))
    assert severities("NIC-PORT-DOWN", host(nics=(*rails, far, beside), gpus=on_switches)) == ["F", "I"]


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
