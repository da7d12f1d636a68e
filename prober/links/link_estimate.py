"""The estimate of the seconds that measuring links takes."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import DIRECTIONS
from prober.links.link_pairs import choose_pairs, into_rounds
from prober.links.pair_test import PING_S, USUAL_LIMITS, LinkLimits
from prober.links.trunk_test import MORE_SECONDS

TEST_START_S = 1.0  # to start a test and wait for its end, measured on the bed


def estimate_s(inventory: Inventory, limits: LinkLimits = USUAL_LIMITS) -> float:
    """Return about how many seconds `measure_links` takes, or 0 if no two hosts share a network.

    Pairs of a round are measured at once, each in both directions. Then all pairs between two clusters send together,
    and with more than two clusters, all pairs of one.
    """
    pairs = [pair for pair in choose_pairs(inventory, limits.pairs) if not pair.rdma_only]
    way_s = PING_S + len(limits.streams) * (limits.seconds + TEST_START_S)
    between = [pair.clusters for pair in pairs if pair.kind == "between"]
    uplinks = {cluster for cluster, count in Counter(chain(*set(between))).items() if count > 1}
    shared = {*between, *((cluster,) for cluster in uplinks)}
    trunk_s = len(DIRECTIONS) * (MORE_SECONDS * limits.seconds + TEST_START_S)
    tunnels = 2 if inventory.encrypts else 1
    return len(into_rounds(pairs)) * len(DIRECTIONS) * way_s * tunnels + len(shared) * trunk_s
