"""The page of an inventory: self-contained, and drawn by a real browser where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holmes_cli.pages.inventory_page import draw_inventory, inventory_page
from holmes_cli.screen.show_inventory import show_inventory
from holmes_core.records.access import Access
from holmes_core.records.inventory import Cluster, Finding, Host, Inventory, Network, Severity
from holmes_core.records.link import Spread, Trunk
from prober.fabrics.clusters import find_clusters, find_shared_network
from tests.builders.clustered_hosts import infiniband_host, roce_host_at
from tests.cli.browser import NEEDS_BROWSER, dumped, hidden_parts, screenshot
from tests.planner.measured_links import measured, with_links


def page_inventory() -> Inventory:
    hosts = (infiniband_host("a1", 1), infiniband_host("a2", 2), roce_host_at("b1", 3), roce_host_at("b2", 4))
    clusters, _ = find_clusters(hosts, {})
    finding = Finding(
        rule="X", severity="W", hosts=("a1",), evidence="<script>alert(1)</script>", effect="e", remedy="r"
    )
    shared = find_shared_network(hosts)
    return Inventory(hosts=hosts, clusters=clusters, shared=shared, findings=(finding,))


def test_page_fetches_nothing_and_escapes_what_hosts_said() -> None:
    page = inventory_page(page_inventory())
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_trunks_are_told_with_their_source_on_page_and_screen(capsys: pytest.CaptureFixture[str]) -> None:
    one = Trunk(clusters=("ib-1", "roce-1"), bandwidth_bytes_per_s=1.25e9, source="hosts.yaml", pairs=0)
    other = Trunk(clusters=("ib-1", "roce-2"), bandwidth_bytes_per_s=6e6, source="measured", pairs=3)
    told = page_inventory().model_copy(update={"trunks": (one, other)})
    show_inventory(told)
    for text in (inventory_page(told), capsys.readouterr().out):
        for words in ("ib-1 - roce-1", "10 Gbit/s", "ib-1 - roce-2", "48 Mbit/s", "measured, 3 pairs of hosts at once"):
            assert words in text


def test_without_trunks_there_is_no_table_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_inventory(page_inventory())
    assert "Trunks" not in inventory_page(page_inventory()) + capsys.readouterr().out


def test_a_tunnels_figure_is_told_as_such_on_page_and_screen(capsys: pytest.CaptureFixture[str]) -> None:
    shared = page_inventory().shared
    assert shared is not None
    clear = measured(("a1", "b1"), 1e7, streams=4).model_copy(update={"network": shared.name})
    tunnel = clear.model_copy(update={"bandwidth_bytes_per_s": Spread(min=1e6, median=2e6), "tunnel": True})
    told = with_links(page_inventory(), clear, tunnel)
    show_inventory(told)
    rows = [line for line in capsys.readouterr().out.splitlines() if "tcp x4" in line]
    assert ["WireGuard" in row for row in rows] == [False, True]
    assert "16 Mbit/s" in rows[1]
    assert inventory_page(told).count("tcp, 4 streams, WireGuard") == 1
    assert "; measured 80 Mbit/s" in inventory_page(told)


def test_page_shows_the_age_of_links() -> None:
    link = measured(("a1", "b1"), 1e7, streams=4).model_copy(update={"measured_at_s": 1e9})
    assert "Measured links, 3.0 days ago" in inventory_page(with_links(page_inventory(), link), 1e9 + 3 * 86400)


def test_every_host_and_port_is_drawn_inside_its_cluster() -> None:
    picture = draw_inventory(page_inventory())
    boxes = {role: [box for box in picture.boxes if box.role.split()[0] == role] for role in ("cluster", "host", "nic")}
    assert [len(boxes[role]) for role in ("cluster", "host", "nic")] == [2, 4, 4]
    for inner, outer in (("host", "cluster"), ("nic", "host")):
        for box in boxes[inner]:
            around = [o for o in boxes[outer] if o.x < box.x and box.x + box.width < o.x + o.width and o.y < box.y]
            assert any(box.y + box.height < o.y + o.height for o in around)
    assert len([line for line in picture.lines if line.role == "shared"]) == 1


def test_large_cluster_wraps_into_rows() -> None:
    hosts = tuple(infiniband_host(f"h{number}", number) for number in range(1, 20))
    clusters, _ = find_clusters(hosts, {})
    picture = draw_inventory(Inventory(hosts=hosts, clusters=clusters, shared=None, findings=()))
    assert len({box.y for box in picture.boxes if box.role == "host"}) == 3
    assert picture.width < 1400


def large_inventory(num_hosts: int) -> Inventory:
    """Two clusters alike, of which some hosts are sick, and one that was not reached."""
    half = num_hosts // 2
    hosts = tuple(
        (infiniband_host if number < half else roce_host_at)(
            f"{'ab'[number >= half]}{1 + number % half:03}", 1 + number
        )
        for number in range(num_hosts)
    )
    names = [host.name for host in hosts]
    fabrics = (
        Network(name="ib-1", kind="InfiniBand", subnet=None, ports=()),
        Network(name="roce-1", kind="RoCE", subnet=None, ports=()),
    )
    clusters = tuple(
        Cluster(name=fabric.name, hosts=tuple(part), fabric=fabric)
        for fabric, part in zip(fabrics, (names[:half], names[half:]), strict=True)
    )
    gone = Host(name="c001", access=Access(), reachable=False)
    words: tuple[tuple[str, Severity, list[str], str], ...] = (
        ("SSH-UNREACHABLE", "F", ["c001"], "connection refused"),
        ("NIC-PORT-DOWN", "F", [names[1]], "mlx5_3:1 is Down"),
        ("GPU-CLOCKS-LOW", "W", names[half : half + num_hosts // 4], "clocks at 1200 MHz"),
        ("OS-HUGEPAGES-NONE", "I", names, "0 huge pages"),
    )
    findings = tuple(
        Finding(rule=rule, severity=severity, hosts=tuple(whom), evidence=what, effect="slower", remedy="mend it")
        for rule, severity, whom, what in words
    )
    return Inventory(hosts=(*hosts, gone), clusters=clusters, shared=None, findings=findings)


@pytest.mark.parametrize("num_hosts", [4, 64, 512])
def test_page_of_any_size_has_findings_first_and_marks_and_names_the_sick(num_hosts: int) -> None:
    fleet = large_inventory(num_hosts)
    page = inventory_page(fleet)
    assert page.index("NIC-PORT-DOWN") < page.index("<svg") < page.index('id="hosts"')
    sick = {name for finding in fleet.findings if finding.severity != "I" for name in finding.hosts}
    findings = page[: page.index("<svg")]
    assert all(name in findings for name in sick)
    drawn = re.findall(r'<g class="host( [FW])?"><title>([^<]*)</title>', page)
    for name in sick:
        assert [role.strip() for role, tip in drawn if name in tip] == ["W" if name[0] == "b" else "F"]
    assert sum(1 + tip.count("equal") for _, tip in drawn) <= 32
    picture = draw_inventory(fleet)
    assert picture.height < 700
    assert all(len(box.label) <= 20 for box in picture.boxes if box.role.startswith("host"))


@pytest.mark.process
@NEEDS_BROWSER
@pytest.mark.parametrize("num_hosts", [4, 64, 512])
@pytest.mark.parametrize("width", [500, 1000, 1600])
def test_browser_shows_all_of_the_page_at_any_width(tmp_path: Path, num_hosts: int, width: int) -> None:
    path = tmp_path / "inventory.html"
    path.write_text(inventory_page(large_inventory(num_hosts)), encoding="utf-8")
    assert hidden_parts(path, width) == ""


@pytest.mark.process
@NEEDS_BROWSER
def test_browser_draws_the_picture(tmp_path: Path) -> None:
    page = tmp_path / "inventory.html"
    page.write_text(inventory_page(page_inventory()), encoding="utf-8")
    elements = dumped(page)
    assert screenshot(page).stat().st_size > 5000
    assert elements.count('<g class="host') == 4
    assert elements.count("<tr><td>") >= 4
