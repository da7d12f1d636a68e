"""Sketch: machines in short form, before they are bought, in a line of text or a YAML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import combinations, permutations
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import MAX_TRUNK_GBPS, NotShared, StatedTrunk
from holmes_core.records.parse_record import parse
from holmes_core.records.record import Record
from holmes_runtime.config.checks import check
from holmes_runtime.config.gpu_peaks import product_of
from planner.sketch.known_parts import GPUS, SHORT, KnownGpu, SketchedKind, known_fabric, known_gpu
from planner.sketch.sketch_text import FORMS, NAME, MalformedSketch, read_network, read_text

MAX_CLUSTERS = 32
MAX_HOSTS = 16_384  # of all clusters: with eight GPUs and NICs each, an inventory of 250 MB
MAX_DEVICES = 400_000  # GPUs and ports of all hosts: likewise
SOURCE = "the sketch"

Gbps = Annotated[float, Field(gt=0, le=MAX_TRUNK_GBPS, strict=True)]
ClusterName = Annotated[str, Field(pattern=rf"^{NAME}$", max_length=40), NotShared]


def _from_text(value: object) -> object:
    return read_network(value) if isinstance(value, str) else value


class Cards(Record):
    """Network cards of a host, all alike."""

    cards: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Number of cards. Example: 8"""
    ports_per_card: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Ports of each card, all in use. Example: 2"""
    gbps: Gbps
    """Gbit/s of a port. Example: 400"""
    card_gbps: Gbps | None = None
    """Gbit/s of a card, if its ports together are faster than the card; not set: as fast as all ports.
    Example: 400"""

    @property
    def num_ports(self) -> int:
        """The number of ports of a host."""
        return self.cards * self.ports_per_card

    @property
    def host_gbps(self) -> float:
        """Gbit/s of a host over all cards, by their own rate."""
        ports = self.ports_per_card * self.gbps
        return self.cards * (ports if self.card_gbps is None else min(ports, self.card_gbps))

    def text(self) -> str:
        """Return `8x400`, or `8x2x200` if cards have several ports."""
        return "x".join(
            map(_shown, (self.cards, *([self.ports_per_card] if self.ports_per_card > 1 else []), self.gbps))
        )


class FabricCards(Cards):
    """Network inside a cluster."""

    kind: Annotated[SketchedKind, BeforeValidator(known_fabric)]
    """InfiniBand (or IB), RoCE, EFA or Ethernet. Example: IB"""
    measured_gbps: Gbps | None = None
    """Gbit/s measured for a host over all cards, above or below the cards' own rate. The bus bandwidth of an all-reduce
    does not qualify: a part of it stays inside hosts. Example: 1508"""


def _ethernet(value: object) -> object:
    """Return the keys of the network to everywhere, which may be written as `Ethernet 1x100`."""
    found = _from_text(value)
    if isinstance(found, dict) and known_fabric(found.get("kind", "Ethernet")) != "Ethernet":
        raise ValueError("the network to everywhere must be Ethernet")
    return {key: each for key, each in found.items() if key != "kind"} if isinstance(found, dict) else found


class SketchCluster(Record):
    """Equal hosts on one fabric."""

    name: ClusterName
    """Name of the cluster, which ends in a letter or digit; its hosts are a1, a2 and so on. Example: a"""
    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS, strict=True)]
    """Number of hosts. Example: 8"""
    gpus_per_host: Annotated[int, Field(ge=1, le=72, strict=True)]
    """GPUs of each host. Example: 8"""
    gpu_memory_gib: Annotated[float, Field(ge=1, le=4096, strict=True)] | None = None
    """Memory of a GPU in GiB, as nvidia-smi shows it; not set: that of the GPU by its name. If set, any GPU name is
    accepted, and `compute.flops_per_s` of job.yaml must give its speed. Example: 140.4"""
    gpu: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[ -~]+$")]
    """GPU by its usual name, with its memory if there are several sizes. Example: A100-80"""
    nvlinks: Annotated[int, Field(ge=0, le=36, strict=True)] | None = None
    """NVLinks of each GPU; 0: only PCI Express connects GPUs; not set: as the GPU is mostly sold. Example: 0"""
    nvlink_hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS, strict=True)] | None = None
    """Hosts whose GPUs share one NVLink domain, such as an NVL72 rack. Example: 18"""
    pci_generation: Annotated[int, Field(ge=3, le=5, strict=True)] | None = None
    """Generation of PCI Express, with 16 lanes; not set: the GPU's own. Example: 4"""
    memory_gib: Annotated[float, Field(ge=1, le=1e6, strict=True)] | None = None
    """Memory of a host in GiB; not set: not known. Example: 2048"""
    fabric: Annotated[FabricCards, BeforeValidator(_from_text)]
    """Network of the cluster, as text or with keys. Example: IB 8x400"""
    ethernet: Annotated[Cards, BeforeValidator(_ethernet)] | None = None
    """Network cards to everywhere else, as text or with keys; not set: as fast as the fastest wire to another cluster.
    With a plain Ethernet fabric, its cards lead everywhere, at no more than the rate of these.
    Example: Ethernet 1x100"""

    @field_validator("gpu")
    @classmethod
    def _gpu_is_known(cls, gpu: str, info: ValidationInfo) -> str:
        try:
            return known_gpu(gpu)
        except ValueError:
            if info.data.get("gpu_memory_gib") is None:
                raise
            return gpu

    @property
    def everywhere(self) -> Cards | None:
        """The cards that lead to other clusters; None if only wires limit them."""
        return self.fabric if self.fabric.kind == "Ethernet" else self.ethernet

    @property
    def outward_gbps(self) -> float | None:
        """Gbit/s of a host's cards on the way to other clusters; None if only wires limit them."""
        shared = self.fabric.kind == "Ethernet" or (self.fabric.kind == "EFA" and self.ethernet is None)
        cards = (self.fabric if shared else None, self.ethernet)
        return min((each.host_gbps for each in cards if each is not None), default=None)

    @property
    def known(self) -> KnownGpu | None:
        """The GPU as it is sold; None if its name is not known."""
        return GPUS.get(self.gpu) or GPUS.get(product_of(self.gpu) or "")

    @property
    def num_nvlinks(self) -> int:
        """The number of NVLinks of a GPU."""
        if self.nvlinks is not None or self.known is None:
            return self.nvlinks or 0
        return 0 if self.gpu not in GPUS and "pcie" in self.gpu.lower() else self.known.nvlinks

    @property
    def num_devices(self) -> int:
        """The number of GPUs and ports of all hosts."""
        ethernet = self.ethernet.num_ports if self.ethernet is not None else 1
        return self.hosts * (self.gpus_per_host + self.fabric.num_ports + ethernet)


class WireRate(Record):
    """Rate at which a host reaches hosts of another cluster."""

    gbps: Gbps
    """Gbit/s of each host; a rate that all hosts of a cluster share is a trunk. Example: 25"""
    latency_ms: Annotated[float, Field(ge=0, le=10_000, strict=True)] = 0.0
    """Milliseconds that a message takes one way. Example: 20"""
    measured: bool = False
    """`gbps` was measured as TCP's payload; it may exceed the cards' own rate. Example: true"""

    def text(self) -> str:
        """Return `25`, or `25 at 20 ms`."""
        return _shown(self.gbps) + (f" at {_shown(self.latency_ms)} ms" if self.latency_ms else "")


class PairWire(WireRate):
    """Rate between the hosts of two clusters."""

    between: tuple[ClusterName, ClusterName]
    """The two clusters. Example: [a, b]"""


def _rate(value: object) -> object:
    """Return a bare number as a rate."""
    return {"gbps": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class Sketch(Record):
    """Clusters, and the wires between them."""

    clusters: tuple[SketchCluster, ...] = Field(min_length=1, max_length=MAX_CLUSTERS)
    between: Annotated[WireRate, BeforeValidator(_rate)] | None = None
    """Rate between the hosts of any two clusters that `wires` does not name: Gbit/s, or keys. Example: 25"""
    wires: tuple[PairWire, ...] = Field(default=(), max_length=MAX_CLUSTERS**2)
    """Pairs of clusters with a wire of their own."""
    trunks: tuple[StatedTrunk, ...] = Field(default=(), max_length=MAX_CLUSTERS**2)

    @field_validator("clusters")
    @classmethod
    def _clusters_differ_and_are_not_too_many(cls, clusters: tuple[SketchCluster, ...]) -> tuple[SketchCluster, ...]:
        names, hosts, devices = Counter[str](), 0, 0
        for number, each in enumerate(clusters):
            check(f"{number}.name", each.name, "a cluster of that name already exists", each.name not in names)
            hosts, devices = hosts + each.hosts, devices + each.num_devices
            names[each.name] += 1
            check(f"{number}.hosts", each.hosts, f"all clusters have at most {MAX_HOSTS} hosts", hosts <= MAX_HOSTS)
            most = f"all hosts have at most {MAX_DEVICES} GPUs and ports, now {devices}"
            check(f"{number}.hosts", each.hosts, most, devices <= MAX_DEVICES)
            of_domain = each.nvlink_hosts
            whole = of_domain is None or each.hosts % of_domain == 0
            check(f"{number}.nvlink_hosts", of_domain, f"must divide the {each.hosts} hosts", whole)
            linked = of_domain is None or each.num_nvlinks > 0
            check(f"{number}.nvlink_hosts", of_domain, f"{each.gpu} has no NVLinks here: set `nvlinks`", linked)
        return clusters

    @field_validator("wires", "trunks")
    @classmethod
    def _wires_join_clusters_that_are_there(cls, wires: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        known, seen = [each.name for each in info.data.get("clusters", ())], set[frozenset[str]]()
        for number, wire in enumerate(wires):
            ends = wire.between or (wire.cluster,)
            key = f"{number}.{'between' if wire.between else 'cluster'}"
            for name in ends if known else ():
                check(key, "-".join(ends), f"there is no cluster {name} ({', '.join(known)})", name in known)
            once = len(set(ends)) == len(ends) and frozenset(ends) not in seen
            check(key, "-".join(ends), "must be two different clusters, named once", once)
            seen.add(frozenset(ends))
        return wires

    @model_validator(mode="after")
    def _every_two_clusters_have_a_wire(self) -> Sketch:
        for one, other in combinations(self.clusters, 2):
            joined = self.wire(one.name, other.name) or (one.everywhere and other.everywhere)
            added = f"add `{one.name}-{other.name}: 25`, or `25 between` for all pairs (Gbit/s of a host)"
            check("between", self.between, f"no wire joins {one.name} and {other.name}: {added}", joined is not None)
        return self

    @model_validator(mode="after")
    def _no_wire_exceeds_the_cards(self) -> Sketch:
        for end, other in permutations(self.clusters, 2):
            wire, own = self.wire(end.name, other.name), end.outward_gbps
            if wire is None or wire.measured or own is None:
                continue
            key = f"wires.{self.wires.index(wire)}" if isinstance(wire, PairWire) else "between"
            most = f"a host of {end.name} has cards of {own:g} Gbit/s to other clusters"
            rule = f"{most}: state at most that, or set `measured: true` in a YAML file with a measured rate"
            check(f"{key}.gbps", wire.gbps, rule, wire.gbps <= own * (1 + 1e-9))
        return self

    def wire(self, one: str, other: str) -> WireRate | None:
        """Return the rate between two clusters; None if only their cards limit it."""
        named = (wire for wire in self.wires if set(wire.between) == {one, other})
        return next(named, self.between)

    def text(self) -> str:
        """Return the sketch as text, without settings that only a YAML file can hold."""
        return "; ".join(self._items())

    def summary(self) -> str:
        """Return the sketch as text, with a note if its file has more."""
        with suppress(HolmesError):
            if parse_sketch(self.text()) == self:
                return self.text()
        return f"{self.text()} (its file has more)"

    def _items(self) -> Iterator[str]:
        for each in self.clusters:
            network = f"{SHORT.get(each.fabric.kind, each.fabric.kind)} {each.fabric.text()}"
            ethernet = f", Ethernet {each.ethernet.text()}" if each.ethernet is not None else ""
            yield f"{each.name}: {each.hosts} x {each.gpus_per_host} {each.gpu}, {network}{ethernet}"
        for wire in self.wires:
            yield f"{'-'.join(wire.between)}: {wire.text()}"
        if self.between is not None:
            yield f"{self.between.text()} between"


def parse_sketch(text: str) -> Sketch:
    """Return the sketch in a line of text.

    Raises:
        HolmesError: The text is malformed. It names the column, the value and the known names.
    """
    try:
        read = read_text(text)
    except MalformedSketch as error:
        raise HolmesError(
            f"{SOURCE}: {error}", f"write {FORMS}, with `;` between them; or name a file that ends with .yaml"
        ) from None
    return parse(Sketch, read.data, SOURCE, read)


def _shown(number: float) -> str:
    return format(Decimal(repr(number)), "f").removesuffix(".0")
