"""`python -m benchmarks.expert_placement [--write]`: experts placed by drawn traces, judged on tokens they did not see.

One layer of 128 experts, eight a token, on ranks of hosts with eight; the mean of three traces for each kind of router
and dispatcher. `--write` puts the table into docs/planning.md.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

from benchmarks.doc_table import write_table
from benchmarks.figure import print_figure
from planner.experts.layer_problem import ExpertRanks, LayerProblem
from planner.experts.place_layer import place_layer
from planner.time_left import TimeLeft
from tests.planner.routing_traces import drawn_tokens

TOKENS = 4096  # that choose, and as many that judge
HOSTS = (2, 4, 8)
SEEDS = 3
ROUTERS = {"independent": (0.3, 0.0), "topics": (0.5, 2.0), "strong topics": (0.3, 4.0)}
"""By name, `skew` and `affinity` of drawn_tokens."""
# Of a token that hosts receive, over a row's, were none of it from the host itself: a plan of Qwen3-30B-A3B on H100
# with eight NICs of 400 Gbit/s.
COPY_S = 0.72


class Measured(NamedTuple):
    """Copies that leave a token's host, the fullest rank's rows over the mean, and the layer's price: before and after.

    `gap` is that of the order on the tokens that chose it, `seconds` the time to find it.
    """

    copies: tuple[float, float]
    fullest: tuple[float, float]
    price: tuple[float, float]
    gap: float
    seconds: float


def measure(seed: int, num_hosts: int, router: str, shares: bool) -> Measured:
    """Place one layer; `shares`: experts on a host share copies."""
    skew, affinity = ROUTERS[router]
    tokens = drawn_tokens(seed, 128, 8, 2 * TOKENS, skew, affinity=affinity)
    chooses, judges = (
        LayerProblem(128, num_hosts, 8 * num_hosts, COPY_S * (1 - 1 / num_hosts) * shares, 1.0, Counter(part))
        for part in (tokens[:TOKENS], tokens[TOKENS:])
    )
    started_s = time.monotonic()
    best = place_layer(chooses, TimeLeft(60.0))
    seconds = time.monotonic() - started_s

    def both(count: Callable[[ExpertRanks], float]) -> tuple[float, float]:
        return count(judges.usual), count(best.placement)

    def copies(placement: ExpertRanks) -> float:
        sent = judges.host_tokens(placement) if shares else judges.rank_rows(placement)
        return sum(sent) * (1 - 1 / num_hosts) / judges.num_tokens

    def fullest(placement: ExpertRanks) -> float:
        rows = judges.rank_rows(placement)
        return max(rows) * len(rows) / sum(rows)

    return Measured(both(copies), both(fullest), both(judges.seconds), 1 - best.bound_s / best.seconds, seconds)


def main() -> None:
    """Print a figure for each case, and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    table = [
        "| router | dispatcher | ranks | copies that leave a host | fullest rank / mean | layer | gap | found in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for router in ROUTERS:
        for shares in (True, False):
            for num_hosts in HOSTS:
                runs = [measure(seed, num_hosts, router, shares) for seed in range(SEEDS)]
                copies = [mean(run.copies[at] for run in runs) for at in (0, 1)]
                fullest = [mean(run.fullest[at] for run in runs) for at in (0, 1)]
                price = mean(run.price[1] / run.price[0] for run in runs) - 1
                gap, seconds = mean(run.gap for run in runs), mean(run.seconds for run in runs)
                dispatcher = "flex" if shares else "alltoall"
                name = f"{router.replace(' ', '_')}_{dispatcher}_{8 * num_hosts}"
                print_figure(f"expert_placement_{name}", 1 + price, "of_usual_order")
                cells = (router, dispatcher, str(8 * num_hosts), *(f"{a:.2f} → {b:.2f}" for a, b in (copies, fullest)))
                table.append(f"| {' | '.join(cells)} | {price:+.0%} | {gap:.1%} | {seconds:.1f} s |")
    if write:
        write_table("planning.md", "expert placement", table)


if __name__ == "__main__":
    main()
