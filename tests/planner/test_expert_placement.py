"""Experts placed by a routing trace: the program against all placements there are, bounds, and plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holmes_cli.screen.expert_tables import expert_sheet
from holmes_core.errors import ANSWER_IS_NO, WRONG_USAGE, HolmesError
from holmes_core.records.job import Job
from planner.cost.compute_time import routed_row_s
from planner.experts.expert_program import solve_experts
from planner.experts.layer_problem import ExpertRanks, LayerProblem
from planner.experts.place_experts import check_routing, place_experts
from planner.experts.place_layer import CLOSE, place_layer
from planner.experts.routing_trace import MAX_LINE_BYTES, read_trace
from planner.experts.swaps import balanced, gathered, improved
from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.time_left import TimeLeft
from tests.planner.fleets import gpt_7b, gpu_inventory, plan_for
from tests.planner.routing_traces import drawn_layer, drawn_tokens
from tests.planner.test_expert_groups import MODEL
from tests.seeds import few_of, seeds

TWO_HOSTS = gpu_inventory([2])
LONG = 60.0


def drawn_problem(seed: int) -> LayerProblem:
    """Four to eight experts on two to four ranks of two hosts, or of one, with or without copies that count."""
    draw = Random(seed)
    experts, ranks = draw.choice(((4, 2), (4, 4), (6, 2), (8, 2), (8, 4)))
    hosts = draw.choice((1, 2, 2, 2)) if ranks > 2 else 2
    copy_s = draw.choice((0.0, 1.0, 1.0, 3.0)) if hosts > 1 else 0.0
    per_token = draw.randint(1, min(3, experts - 1))
    tokens = drawn_layer(seed, experts, per_token, draw.choice((7, 50, 400)), topics=draw.choice((2, 4)))
    return LayerProblem(experts, hosts, ranks, copy_s, draw.choice((0.0, 0.2, 1.0)) or float(copy_s == 0), tokens)


def all_placements(experts: Sequence[int], ranks: int) -> Iterator[ExpertRanks]:
    """Yield every way to give equally many experts to each rank."""
    if ranks == 1:
        yield (tuple(experts),)
        return
    for first in combinations(experts, len(experts) // ranks):
        rest = [expert for expert in experts if expert not in first]
        yield from ((first, *others) for others in all_placements(rest, ranks - 1))


def counted_s(problem: LayerProblem, placement: ExpertRanks) -> float:
    """The seconds of a placement, counted token by token."""
    rank_of = {expert: rank for rank, experts in enumerate(placement) for expert in experts}
    rows, copies = Counter[int](), Counter[int]()
    for chosen, count in problem.tokens.items():
        for _ in range(count):
            ranks = [rank_of[expert] for expert in chosen]
            rows.update(ranks)
            copies.update({rank // (problem.num_ranks // problem.num_hosts) for rank in ranks})
    return problem.copy_s * max(copies.values()) + problem.row_s * max(rows.values())


@pytest.mark.parametrize("seed", seeds(100, few=5, more=7))
def test_the_placement_is_as_good_as_the_best_of_all(seed: int) -> None:
    problem = drawn_problem(seed)
    best_s = min(counted_s(problem, each) for each in all_placements(range(problem.num_experts), problem.num_ranks))
    placed = place_layer(problem, TimeLeft(LONG))
    assert placed.seconds == problem.seconds(placed.placement) == pytest.approx(best_s)
    assert placed.bound_s == pytest.approx(best_s, rel=CLOSE)
    assert problem.bound_s() <= best_s * (1 + 1e-9)
    solved, bound_s = solve_experts(problem, problem.seconds(problem.usual), LONG)
    assert solved is not None
    assert problem.seconds(solved) == pytest.approx(best_s)
    assert bound_s == pytest.approx(best_s)


@pytest.mark.parametrize("seed", few_of(2, range(10)))
def test_searches_only_improve_and_never_beat_the_bound(seed: int) -> None:
    problem = LayerProblem(32, 4, 8, 1.0, 0.3, drawn_layer(seed, 32, 4, 600, topics=4, affinity=3.0))
    for start in (problem.usual, balanced(problem), gathered(problem)):
        problem.check(start)
        better = improved(problem, start, TimeLeft(LONG))
        problem.check(better)
        assert problem.bound_s() <= problem.seconds(better) <= problem.seconds(start)
        assert problem.seconds(better) < problem.seconds(problem.usual)


def test_experts_that_tokens_choose_together_share_a_host() -> None:
    tokens: dict[tuple[int, ...], int] = {(0, 2, 4, 6): 50, (1, 3, 5, 7): 50}
    problem = LayerProblem(8, 2, 4, 1.0, 1.0, tokens)
    placed = place_layer(problem, TimeLeft(LONG))
    assert {frozenset(sum(placed.placement[at : at + 2], ())) for at in (0, 2)} == {frozenset(each) for each in tokens}
    assert placed.seconds == placed.bound_s == 50 + 100


def test_a_bound_of_fractions_is_no_more_than_the_whole_number_they_stand_for() -> None:
    problem = LayerProblem(6, 2, 2, 1e-6, 0.0, {(0, 1, 2): 7, (3, 4, 5): 7})
    assert problem.fewest_copies == 14
    assert problem.bound_s() == problem.seconds(((0, 1, 2), (3, 4, 5)))


def test_without_copies_that_count_the_busiest_experts_are_apart() -> None:
    problem = LayerProblem(4, 2, 2, 0.0, 1.0, {(0,): 5, (1,): 5, (2,): 1, (3,): 1})
    assert place_layer(problem, TimeLeft(LONG)).seconds == 6 < problem.seconds(problem.usual) == 10


def test_without_time_experts_are_balanced() -> None:
    problem = LayerProblem(64, 4, 16, 0.0, 1.0, drawn_layer(1, 64, 4, 500))
    placed = place_layer(problem, TimeLeft(0.0))
    assert problem.bound_s() <= placed.seconds < problem.seconds(problem.usual)


def job(*command: str, ep: int = 16, **model: Any) -> Job:
    """A job of experts on two hosts, with one group over both."""
    trainer = {"engine": "megatron", "command": ["python", "train.py", *command]}
    parallel = {"ep": ep, "pp": 1, "tp": 1, "micro_batch_size": 1}
    return gpt_7b(trainer=trainer, data=None, model=MODEL | model, global_batch_size=64, parallel=parallel)


def trace(tokens: int = 400, **skews: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """A trace of the model's six layers."""
    return tuple(tuple(drawn_tokens(layer, 32, 4, tokens, **skews)) for layer in range(6))


FLEX = job("--moe-token-dispatcher-type", "flex")


def test_copies_that_a_host_s_experts_share_leave_once() -> None:
    layers = place_experts(TWO_HOSTS, plan_for(TWO_HOSTS, FLEX), trace(topics=2, affinity=4.0), TimeLeft(LONG))
    assert [layer.layer for layer in layers] == list(range(6))
    for layer in layers:
        assert sorted(sum(layer.experts, ())) == list(range(32))
        assert {len(experts) for experts in layer.experts} == {2}
        assert layer.placed.copies < layer.usual.copies <= 1
        assert layer.placed.seconds < layer.usual.seconds


def test_a_copy_for_each_expert_leaves_in_any_order_and_only_balance_is_won() -> None:
    layers = place_experts(TWO_HOSTS, plan_for(TWO_HOSTS, job()), trace(skew=0.2), TimeLeft(LONG))
    assert sum(layer.placed.fullest for layer in layers) < sum(layer.usual.fullest for layer in layers)
    for layer in layers:
        assert layer.placed.copies == layer.usual.copies == 4 / 2
        assert layer.placed.fullest <= layer.usual.fullest
        assert layer.placed.seconds / layer.usual.seconds == pytest.approx(layer.placed.fullest / layer.usual.fullest)


def test_a_balanced_group_waits_as_long_as_it_is_planned_to() -> None:
    # Each expert comes with the next three, round and round: all ranks have the same rows.
    plan = plan_for(TWO_HOSTS, job())
    even = tuple(tuple(sorted((first + at) % 32 for at in range(4))) for first in range(32) for _ in range(2))
    layers = place_experts(TWO_HOSTS, plan, (even,) * 6, TimeLeft(LONG))
    exchange_s = 4 * 1024 * 1024 * 2 * 4 / 2 / (0.7 * 1600e9 / 8 / 8)  # 1024 tokens of 1024 bf16, half of four copies
    problem = read_problem(TWO_HOSTS, plan.job)
    speed = problem.fleet.classes[0].hardware.slot.speed
    assert speed is not None
    execution = Candidate(1, 1, 16, 1).execution(problem.job)
    assert execution.slowdown > 1
    products_s = 1024 * 4 * routed_row_s(plan.job.model, execution, speed.slowed(execution.slowdown))
    assert [layer.placed.fullest for layer in layers] == [1] * 6
    assert layers[0].placed.seconds == pytest.approx(exchange_s + products_s)


def test_an_order_that_is_not_better_on_other_tokens_is_not_taken() -> None:
    # Even tokens choose the first experts, and odd ones are balanced by the usual order only.
    chosen = ((0, 1, 2, 3), (4, 9, 14, 19)), ((0, 8, 16, 24), (2, 10, 18, 26), (4, 12, 20, 28), (6, 14, 22, 30))
    tokens = tuple(part[at % len(part)] for at in range(16) for part in chosen)
    for planned in (FLEX, job()):
        layer = place_experts(TWO_HOSTS, plan_for(TWO_HOSTS, planned), (tokens,) * 6, TimeLeft(LONG))[0]
        assert layer.placed == layer.usual
        assert sum(layer.experts, ()) == tuple(range(32))
    # The gap of the usual order: half of the even tokens come to two experts of rank 0, and would come to two ranks.
    assert layer.gap == pytest.approx(1 / 2)


def test_layers_that_no_time_is_left_for_keep_the_usual_order() -> None:
    layers = place_experts(TWO_HOSTS, plan_for(TWO_HOSTS, FLEX), trace(40), TimeLeft(0.0))
    assert [sum(layer.experts, ()) for layer in layers] == [tuple(range(32))] * 6
    assert [(layer.placed == layer.usual, layer.gap) for layer in layers] == [(True, None)] * 6
    rows = {row[0]: row[2] for row in expert_sheet(layers).rows}
    assert rows["layers left in the usual order for lack of time"] == "6 of 6"
    assert rows["gap to the best order"] == "not known"


def test_groups_inside_hosts_send_nothing_to_others() -> None:
    two_stages = job(ep=8)
    plan = plan_for(
        TWO_HOSTS, two_stages.model_copy(update={"parallel": two_stages.parallel.model_copy(update={"pp": 2})})
    )
    layers = place_experts(TWO_HOSTS, plan, trace(), TimeLeft(LONG))
    assert [layer.usual.copies for layer in layers] == [layer.placed.copies for layer in layers] == [0] * 6
    assert all(layer.placed.seconds <= layer.usual.seconds for layer in layers)


def test_a_group_with_more_ranks_on_one_host_is_refused() -> None:
    whole = gpu_inventory([3])
    hosts = (whole.hosts[0], *(host.model_copy(update={"gpus": host.gpus[:4]}) for host in whole.hosts[1:]))
    inventory = whole.model_copy(update={"hosts": hosts})
    with pytest.raises(HolmesError, match="16 of each kept together since they share experts") as answer:
        plan_for(inventory, job())
    assert answer.value.exit_code == ANSWER_IS_NO


def test_groups_over_unlike_numbers_of_hosts_are_refused() -> None:
    whole = gpu_inventory([3])
    hosts = (whole.hosts[0], *(host.model_copy(update={"gpus": host.gpus[:4]}) for host in whole.hosts[1:]))
    inventory = whole.model_copy(update={"hosts": hosts})
    with pytest.raises(HolmesError, match="8 on a1; 4 on a2, 4 on a3") as answer:
        place_experts(inventory, plan_for(inventory, job(ep=8)), trace(40), TimeLeft(LONG))
    assert answer.value.exit_code == ANSWER_IS_NO


def test_plans_without_an_order_to_choose_are_refused() -> None:
    with pytest.raises(HolmesError, match=r"parallel\.ep 1") as answer:
        place_experts(TWO_HOSTS, plan_for(TWO_HOSTS, job(ep=1)), trace(), TimeLeft(LONG))
    assert answer.value.exit_code == ANSWER_IS_NO
    options = ("--moe-router-num-groups=8", "--moe-router-topk-limited-devices=4")
    for refused, said in ((gpt_7b(), "no experts"), *((job(option), option.split("=")[0]) for option in options)):
        with pytest.raises(HolmesError, match=said) as wrong:
            check_routing(refused)
        assert wrong.value.exit_code == WRONG_USAGE


def written(path: Path, layers: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in layers), encoding="utf-8")
    return path


def lines(layers: int = 6) -> list[dict[str, Any]]:
    """The lines of a trace, with layers and experts in any order."""
    return [{"layer": at, "experts": [[3, 1, 0, 31]] * 2} for at in reversed(range(layers))]


def test_a_trace_is_read_in_order(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path / "t.jsonl", lines()), FLEX.model) == (((0, 1, 3, 31),) * 2,) * 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": 6}, "line 1: layer 6 exceeds the model's 6 layers"),
        ({"layer": 0}, "line 6: layer 0 occurs twice"),
        ({"layer": -1}, "line 1: layer"),
        ({"experts": [[0, 1, 2, 32]] * 2}, r"line 1: token 0 chose experts \[0, 1, 2, 32\]"),
        ({"experts": [[0, 1, 2, 3], [0, 1, 2, 2]]}, "line 1: token 1"),
        ({"experts": [[0, 1, 2, -3]] * 2}, "line 1: token 0"),
        ({"experts": [[0, 1, 2]] * 2}, "line 1: token 0"),
        ({"experts": [[0, 1, 2, 3]]}, "line 1: experts"),
        ({"experts": [[0, 1, 2, 3.5]] * 2}, "line 1: experts"),
        ({"experts": [[[]]] * 2}, "line 1: experts"),
        ({"more": 1}, "line 1: more"),
    ],
)
def test_a_trace_of_another_model_is_refused_by_its_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    first, *others = lines()
    with pytest.raises(HolmesError, match=said) as error:
        read_trace(written(tmp_path / "t.jsonl", [first | change, *others]), FLEX.model)
    assert error.value.exit_code == WRONG_USAGE


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for text, said in (
        (b"", "no line for layer 0"),
        (b"[1]\n", "line 1: holds a list"),
        (b"{\n", "t.jsonl: line 1, column 2: not JSON"),
        (b'{"layer": 9, "layer": 0, "experts": [[0, 1, 2, 3], [0, 1, 2, 3]]}\n', "line 1: key 'layer' is listed twice"),
        (b"\xff\n", "not text: byte 0"),
        (b" " * (MAX_LINE_BYTES + 1), "MiB in a line"),
        (b"[" * 100_000, "t.jsonl: line 1: "),
    ):
        path.write_bytes(text)
        with pytest.raises(HolmesError, match=said):
            read_trace(path, FLEX.model)
    for other in (tmp_path, tmp_path / "none"):
        with pytest.raises(HolmesError, match="cannot be read"):
            read_trace(other, FLEX.model)


def test_a_drawn_router_is_skewed() -> None:
    counts = Counter(expert for chosen, count in drawn_layer(0, 32, 4, 500).items() for expert in chosen * count)
    assert counts.total() == 2000
    assert max(counts.values()) > 2 * 2000 / 32
