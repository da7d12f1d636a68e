"""Islands: runs apart that exchange how their parameters change, go on without one another and come back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.codec import OUTER_BLOCK, packed_bytes
from holmes_runtime.config.islands.rendezvous_messages import MEETING
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import OuterCodec
from holmes_runtime.config.trainable import Lora, adapter_parameters
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer
from tests.seeds import all_but

from .asked_for import asked_for
from .islands_in_process import IslandsInProcess
from .islands_worker import LONG, LORA, PIPELINE, REPLICAS, SLOW_AFTER, STEPS, H, Worker
from .launched_runs import ONE_ISLAND, TINY, FinishedRun, launch, make_config
from .meeting_place import MeetingPlace
from .test_continuity import WORKER_LIMIT_S, start

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2 * WORKER_LIMIT_S)]

PARAMETERS = stage_parameters(TINY, 3, True, True)
Islands = list[dict[str, Any]]
# Exhaustive: what is lost is lost in another way, or exchanges are by fragments or late in others, too.
COVERED = ("alone, streaming", "followed, one alone", "giver halts", "slow, late")
FIVES: dict[str, tuple[OuterCodec, int]] = {"five": ("none", 1), "five, streaming": ("int8", 2)}
GIVERS = {"giver dies": "rank 0: ", "giver halts": "rank 0: island 0 is lost"}
SLOW_INTERVALS = {"slow": 1, "slow, late": 1, "slow, streaming": 2}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Islands]:
    folder = tmp_path_factory.mktemp("islands")
    needed = {parameters.get("name") for parameters in asked_for(request)}
    done = start("islands_worker", str(folder), *(name for name in COVERED if name not in needed))
    assert done.returncode == 0, done.stderr
    results: dict[str, Islands] = json.loads((folder / "islands.json").read_text())
    return results


def ended_well(islands: Islands) -> Islands:
    said = "\n".join(f"island {number}: {island['said']}" for number, island in enumerate(islands))
    for island in islands:
        assert set(island["exit_codes"]) == {0}, said  # what one says often tells why another has failed
    return islands


def digests(exchanges: dict[str, list[dict[str, Any]]]) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return by exchange and its members the digest of one island's state."""
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for lines in exchanges.values():
        for line in lines:
            key = line["exchange"], tuple(line["islands"])
            found[key] = (found.get(key, 0) + int(line["digest"], 16)) % 2**64
    return found


def together(islands: Islands, members: tuple[int, ...] = (0, 1)) -> list[int]:
    """Check that both islands have the same state after each exchange of all `members`; return these exchanges."""
    first, second = (digests(island["outer"]) for island in islands[:2])
    both = [key for key in first if key in second and key[1] == members]
    assert [first[key] for key in both] == [second[key] for key in both]
    return [exchange for exchange, _ in both]


@pytest.mark.exhaustive  # "sharded weights" and "adapters" have other degrees, and `holmes launch` a torchrun for each
def test_islands_of_other_degrees_are_equal_after_every_round(tmp_path: Path) -> None:
    """Each under a torchrun of its own."""
    corpus = tmp_path / "text.txt"
    corpus.write_bytes(bytes(range(32, 127)) * 40)
    place = MeetingPlace()

    def island(number: int) -> FinishedRun:
        sync = replace(
            *(ONE_ISLAND,), island=number, num_islands=2, samples_before=32 * number, round_samples=64, codec="int4",
            fragments=2, delay_steps=1, outer_rate=0.7, momentum=0.9, grace_s=120.0, interfaces=("lo", "lo"),
        )  # fmt: skip
        config = make_config(corpus, steps=12, outer_sync=sync, **(PIPELINE, REPLICAS)[number])
        return launch(config, tmp_path / str(number), variables={MEETING: place.addresses[number]})

    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(island, range(2)))

    assert [run.exit_code for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    lines = [
        {str(rank): [line["outer"] for line in of if line["outer"]] for rank, of in run.metrics.items()} for run in runs
    ]
    assert together([{"outer": each} for each in lines]) == [0, 1, 2, 3, 4, 5]
    assert runs[0].losses() != runs[1].losses()  # they have read other samples


def test_islands_of_two_and_three_hosts_are_equal_after_every_round(runs: dict[str, Islands]) -> None:
    assert together(ended_well(runs["two and three"])) == [0, 1, 2, 3, 4, 5]


def test_an_island_of_sharded_weights_is_equal_to_one_of_stages_after_every_round(runs: dict[str, Islands]) -> None:
    assert together(ended_well(runs["sharded weights"])) == list(range(STEPS // H * 2))


@pytest.mark.parametrize("name", FIVES)
def test_five_islands_are_equal_after_every_round_and_send_as_much_as_around_a_ring(
    runs: dict[str, Islands], name: str
) -> None:
    codec, fragments = FIVES[name]
    islands = ended_well(runs[name])
    own = [digests(island["outer"]) for island in islands]
    assert all(each == own[0] for each in own)
    assert [exchange for exchange, members in own[0] if members == (0, 1, 2, 3, 4)] == [*range(STEPS // H * fragments)]

    ring = STEPS // H * 2 * 4 / 5 * packed_bytes(codec, PARAMETERS, 4, OUTER_BLOCK)
    if fragments > 1:  # the last round has one fragment more, and all parameters in it
        ring *= (STEPS // H + 1 - 1 / fragments) / (STEPS // H)
    for key in ("sent_bytes", "received_bytes"):
        moved = [sum(line[key] for lines in island["outer"].values() for line in lines) for island in islands]
        assert moved == [pytest.approx(ring, rel=0.05)] * 5


def test_each_island_sends_its_packed_change_once(runs: dict[str, Islands]) -> None:
    for island in ended_well(runs["int4"]):
        packed = packed_bytes("int4", PARAMETERS, 4, OUTER_BLOCK)
        assert {line["sent_bytes"] for line in island["outer"]["0"]} == {packed}
        assert {line["received_bytes"] for line in island["outer"]["0"]} == {packed}
        assert {line["tokens"] for line in island["outer"]["0"]} == {2 * H * 8 * TINY.seq_length}
        # Plain data parallelism of two sends as much as all gradients every step.
        assert 20 * 4 * PARAMETERS / packed > 154  # 155.15 of whole blocks
    assert together(runs["int4"]) == [0, 1, 2, 3, 4, 5]


def test_islands_that_train_adapters_exchange_those_alone(runs: dict[str, Islands]) -> None:
    islands = ended_well(runs["adapters"])
    assert together(islands) == [0, 1, 2, 3, 4, 5]
    packed = packed_bytes("int4", 3 * adapter_parameters(TINY, LORA), 4, OUTER_BLOCK)
    assert {line["sent_bytes"] for line in islands[0]["outer"]["0"]} == {packed}


@pytest.mark.parametrize(
    ("name", "outer"),
    [
        ("int4", {"codec": "int4"}),
        ("streaming", {"codec": "int8", "fragments": 2, "delay_steps": 1}),
        ("five", {"codec": "none", "num_islands": 5}),  # means of chunks are to the bit those of the whole
    ],
)
def test_islands_over_a_network_learn_what_islands_in_one_process_do(
    runs: dict[str, Islands], name: str, outer: dict[str, Any], tmp_path: Path
) -> None:
    worker = Worker(tmp_path)
    configs = [worker.config({}, outer, island) for island in range(outer.get("num_islands", 2))]
    losses, _ = in_process(configs)

    assert [[*each] for each in zip(*losses, strict=True)] == [island["losses"] for island in ended_well(runs[name])]


def test_islands_that_meet_once_are_averaged_by_their_tokens_at_the_end(
    runs: dict[str, Islands], tmp_path: Path
) -> None:
    configs = Worker(tmp_path).apart()
    losses, evaluations = in_process(configs)

    islands = ended_well(runs["averaged once"])
    assert [[*each] for each in zip(*losses, strict=True)] == [island["losses"] for island in islands]
    assert [island["evaluations"] for island in islands] == [[each] for each in evaluations]
    assert together(islands) == [0]
    assert [line["tokens"] for line in islands[0]["outer"]["0"]] == [STEPS * (8 + 4) * TINY.seq_length]


def in_process(configs: list[RunConfig]) -> tuple[list[list[float]], list[float | None]]:
    """By step the losses of islands in this process, and the validation losses of all at their end."""
    trainers = []
    for config in configs:
        corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
        trainers.append(Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu")))
    islands, threads = IslandsInProcess(trainers), torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as ranks have
        losses = [islands.step(step) for step in range(STEPS)]
        has_validation = configs[0].evaluation is not None
        return losses, [trainer.evaluate(1, STEPS) for trainer in trainers if has_validation]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", all_but(["alone, streaming"], ["alone", "alone, streaming", "alone, sharded weights"]))
def test_an_island_that_keeps_nothing_back_trains_as_if_there_were_no_islands(
    runs: dict[str, Islands], name: str
) -> None:
    plain, island = ended_well(runs[name])

    assert island["losses"] == plain["losses"]
    assert len(island["outer"]["0"]) == STEPS // H * (1 if name == "alone" else 2)


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_islands_that_exchange_each_step_on_equal_samples_train_as_one_run(lora: Lora | None, tmp_path: Path) -> None:
    worker, plan = Worker(tmp_path), {"lora": lora}
    plain = worker.config(plan, None)
    batch, exact = plain.global_batch_size, {"inner_steps": 1, "outer_rate": 1.0, "momentum": 0.0}
    same = {"samples_before": 0, "round_samples": batch}
    islands, _ = in_process([worker.config(plan, exact | same, island) for island in range(2)])

    corpus = load_corpus(plain.data, "here", plain.model.seq_length, plain.model.vocab_size)
    trainer = Trainer(plain, plain.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    losses = [trainer.step(step).loss for step in range(STEPS)]
    assert len({*losses}) == STEPS
    assert [*zip(*islands, strict=True)] == [pytest.approx(losses, abs=1e-6)] * 2


def test_a_stop_within_an_exchange_changes_no_bit_of_what_follows(runs: dict[str, Islands]) -> None:
    whole, stopped, resumed = (ended_well(runs[f"resume {part}"]) for part in ("uninterrupted", "stopped", "resumed"))

    for island in range(2):
        assert stopped[island]["losses"] + resumed[island]["losses"] == whole[island]["losses"]
    assert together(resumed) == together(whole)[1:]


def test_an_island_that_is_killed_costs_the_other_nothing_and_comes_back_without_a_folder(
    runs: dict[str, Islands],
) -> None:
    first, again, killed = runs["killed"]
    ended_well([first, again])
    assert set(killed["exit_codes"]) == {-9}

    assert first["steps"] == list(range(STEPS))
    assert (0,) in {islands for _, islands in digests(first["outer"])}
    assert "has joined the other islands, which were ahead: continues after " in again["said"]
    assert again["steps"][0] > 0
    assert together([first, again])[-1] == STEPS // H - 1


def test_an_island_that_dies_within_an_exchange_leaves_the_others_with_one_state(runs: dict[str, Islands]) -> None:
    first, dead = runs["dies within"]
    assert 9 in dead["exit_codes"]
    ended_well([first])

    assert "outer sync 1 of the islands is repeated: island 0" in first["said"]
    assert [islands for _, islands in digests(first["outer"])] == [(0, 1), *[(0,)] * (STEPS // H - 1)]


def test_an_island_that_is_cut_off_within_an_exchange_is_not_waited_for_longer_than_the_controller_does(
    runs: dict[str, Islands],
) -> None:
    first = runs["cut off within"][0]
    ended_well([first])

    assert "outer sync 1 of the islands is repeated: island 1 is lost" in first["said"]
    assert [islands for _, islands in digests(first["outer"])] == [(0, 1), *[(0,)] * (STEPS // H - 1)]


def test_an_island_that_is_not_heard_within_an_exchange_joins_the_others_when_it_is_heard_again(
    runs: dict[str, Islands],
) -> None:
    first, second = runs["silent within"]
    ended_well([first, second])

    assert ": island 1 has a silent host" in first["said"]
    assert "outer sync 1 of the islands is repeated: " in second["said"]
    assert (1, (0,)) in digests(first["outer"])
    joined = [line["exchange"] for line in second["outer"]["0"] if line["has_joined"]]
    assert len(joined) == 1
    assert together([first, second]) == [0, *range(joined[0] + 1, STEPS // H)]


def test_an_island_that_comes_back_is_given_the_state_before_the_next_exchange_is_due(runs: dict[str, Islands]) -> None:
    first, again, _ = runs["called"]
    ended_well([first, again])

    steps = {line["exchange"]: line["step"] for line in first["outer"]["0"]}
    assert list(steps) == [0, 1, 2]
    assert steps[0] == 7
    assert steps[1] in range(8, 14)  # as soon as it is called, and it waits before step 13 until it has been
    assert steps[2] in range(steps[1] + 1, 24)  # earlier than due where the other is much faster, and waits
    assert [(line["exchange"], line["has_joined"]) for line in again["outer"]["0"]] == [(1, True), (2, False)]
    assert again["steps"][0] > steps[1]
    # As many as it has time for until the other has taken its last.
    assert again["steps"] == list(range(again["steps"][0], again["steps"][-1] + 1))
    assert together([first, again]) == [2]


@pytest.mark.parametrize(
    "name", all_but(["followed, one alone"], ["followed", "followed, one alone", "followed, five"])
)
def test_exchanges_go_on_while_the_state_is_on_its_way_to_an_island_that_follows_them(
    runs: dict[str, Islands], name: str
) -> None:
    *others, again, _ = runs[name]
    ended_well([*others, again])

    first, members = others[0], tuple(range(len(others)))
    assert first["steps"] == list(range(LONG))
    (joined,) = (line for line in again["outer"]["0"] if line["has_joined"])
    without = [exchange for exchange, islands in digests(first["outer"]) if islands == members]
    assert joined["exchange"] in without
    assert joined["exchange"] >= without[0] + 2  # the state was on its way through these
    all_of_them = (*members, len(others))
    both = together([first, again], all_of_them)
    assert all(together([other, again], all_of_them) == both for other in others)
    assert min(each for each in both if each > without[0]) == joined["exchange"] + 1
    assert max(both) == LONG // H * (1 if name == "followed, one alone" else 2) - 1


@pytest.mark.parametrize("name", all_but(["giver halts"], GIVERS))
def test_an_island_whose_giver_is_lost_is_given_the_state_by_another(runs: dict[str, Islands], name: str) -> None:
    other, again = ended_well(runs[name])

    assert f"the state transfer from the other islands is repeated: failed: {GIVERS[name]}" in again["said"]
    assert "has joined the other islands, which were ahead: continues after " in again["said"]
    pair = digests(other["outer"]), digests(again["outer"])
    both = [key for key in pair[0] if key in pair[1] and key[1] == (1, 2)]
    assert both
    assert all(pair[0][key] == pair[1][key] for key in both)


def test_an_island_that_dies_before_it_has_the_state_holds_nobody_up(runs: dict[str, Islands]) -> None:
    (first,) = ended_well(runs["newcomer dies"])

    assert first["steps"] == list(range(STEPS))
    assert "island 1 has not received the whole state: " in first["said"]


@pytest.mark.parametrize("name", all_but(["slow, late"], SLOW_INTERVALS))
def test_an_island_that_becomes_slow_takes_fewer_steps_and_brings_what_it_has_learned(
    runs: dict[str, Islands], name: str
) -> None:
    intervals = SLOW_INTERVALS[name]
    first, slow = ended_well(runs[name])

    assert together([first, slow]) == [0, 1, 2]
    assert not any(line["has_joined"] for line in slow["outer"]["0"])
    assert first["steps"] == list(range(STEPS))
    assert SLOW_AFTER < len(slow["steps"]) < STEPS
    assert slow["steps"][: SLOW_AFTER + 1] == list(range(SLOW_AFTER + 1))
    tokens = [line["tokens"] for line in first["outer"]["0"]]
    assert tokens[1] < intervals * tokens[0]
    assert len(first["evaluations"]) == len(slow["evaluations"]) == STEPS // SLOW_AFTER
    if intervals == 1:  # all parameters are exchanged at the end
        assert slow["evaluations"][-1] == pytest.approx(first["evaluations"][-1], abs=1e-5)


def test_an_island_that_comes_late_takes_over_the_state_of_those_that_went_on(runs: dict[str, Islands]) -> None:
    first, late = ended_well(runs["late"])

    joined = [line for line in late["outer"]["0"] if line["has_joined"]]
    assert joined
    assert joined[0]["islands"] == [0]
    assert together([first, late])


@pytest.mark.exhaustive  # at random steps; "killed" and "resume" are so at one
def test_five_islands_of_which_one_is_killed_twenty_times_are_equal_after_every_round(tmp_path: Path) -> None:
    done = start("killed_islands", str(tmp_path), "1")

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["killed"]) == 20
    assert len(result["exchanges"]) > 40
    assert {key: states for key, states in result["exchanges"].items() if len(states) > 1} == {}
    assert len(set(result["models"])) == 1
    assert all(words.startswith("the common model after exchange ") for words in result["weights"])
