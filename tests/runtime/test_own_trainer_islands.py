"""Islands of a script of plain torch with `holmes_runtime.outer.island`: bits, checkpoints, layouts and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .own_trainer_worker import STEPS, STOP_AT
from .test_continuity import WORKER_LIMIT_S, start
from .test_islands import digests

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2 * WORKER_LIMIT_S)]

Islands = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Islands]:
    folder = tmp_path_factory.mktemp("own-trainer")
    done = start("own_trainer_worker", str(folder))
    assert done.returncode == 0, done.stderr
    results: dict[str, Islands] = json.loads((folder / "results.json").read_text())
    return results


def ended_well(islands: Islands) -> Islands:
    for island in islands:
        assert set(island["exit_codes"]) == {0}, island["said"]
    return islands


def common_exchanges(islands: Islands) -> list[int]:
    """Check that both islands have the same state after each exchange; return the exchanges of both."""
    first, second = (digests({"all": island["outer"]}) for island in ended_well(islands))
    assert first == second
    return [exchange for exchange, members in first if members == (0, 1)]


def test_two_islands_that_average_every_step_of_sgd_are_one_run_of_all_samples_to_the_bit(
    runs: dict[str, Islands],
) -> None:
    """This holds only without rounding, because one run adds up in another order."""
    (one,), apart = ended_well(runs["sums as one"]), ended_well(runs["sums apart"])
    assert [island["weights"] for island in apart] == [one["weights"]] * 2
    assert apart[0]["losses"] == one["losses"]
    assert apart[0]["losses"] != apart[1]["losses"]  # of other samples
    assert common_exchanges(apart) == [0, 1, 2, 3]


def test_sums_that_are_rounded_differ_in_their_last_bits_alone(runs: dict[str, Islands]) -> None:
    (one,), apart = ended_well(runs["rounded as one"]), ended_well(runs["rounded apart"])
    assert apart[0]["weights"] == apart[1]["weights"]
    assert apart[0]["losses"] == pytest.approx(one["losses"], rel=1e-5)


def test_islands_of_the_same_samples_are_one_of_them_alone_to_the_bit_under_any_optimizer(
    runs: dict[str, Islands],
) -> None:
    (one,), apart = ended_well(runs["same samples as one"]), ended_well(runs["same samples apart"])
    assert [(island["losses"], island["weights"]) for island in apart] == [(one["losses"], one["weights"])] * 2
    assert common_exchanges(apart) == list(range(STEPS))


def test_a_checkpoint_within_an_exchange_changes_no_bit_of_what_follows(runs: dict[str, Islands]) -> None:
    whole, stopped, resumed = (ended_well(runs[name]) for name in ("uninterrupted", "stopped", "resumed"))
    for island in range(2):
        assert len(stopped[island]["losses"]) == STOP_AT
        assert stopped[island]["losses"] + resumed[island]["losses"] == whole[island]["losses"]
        assert resumed[island]["weights"] == whole[0]["weights"]
    assert common_exchanges(whole) == [0, 1, 2, 3]


def test_islands_that_go_on_from_weights_alone_hold_no_exchange_again_that_is_long_past(
    runs: dict[str, Islands],
) -> None:
    """Momentum alone would move the weights in it."""
    assert 0 not in common_exchanges(runs["weights alone"])
    assert [len(island["losses"]) for island in runs["weights alone"]] == [3, 3]


def test_an_island_of_tensor_shards_and_one_of_copies_end_with_one_model(runs: dict[str, Islands]) -> None:
    first, second = ended_well(runs["other layouts"])
    assert common_exchanges([first, second]) == [0, 1, 2, 3]
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("copies differ", "parameter 0.weight of shape (6, 8) has other values on this rank than on rank 0"),
        (
            "other steps",
            f"the script trains {STEPS + 1} steps, but the plan has {STEPS} for island 0: pass it {{steps}}",
        ),
        ("no parameters", "no rank has a parameter with a gradient: give Island model.named_parameters()"),
        ("no names", "parameters come without their names: give Island model.named_parameters()"),
        ("one name", "two parameters are called weight: give each its own name"),
        ("steps first", "`step` was called before `begin`"),
        ("begins late", f"`begin({STEPS + 1})` is outside the {STEPS} steps"),
        ("begins early", f"`begin(0)`, but the loaded outer state is of {STOP_AT} steps"),
        ("begins twice", "`begin` was called twice"),
        ("loads late", "`load_state_dict` was called after `begin`"),
        ("steps on", f"all {STEPS} steps are taken"),
        ("not finite", "parameter 0.weight has numbers that are not finite"),
    ],
)
def test_scripts_that_islands_cannot_be_made_of_are_refused(runs: dict[str, Islands], name: str, said: str) -> None:
    (island,) = runs[name]
    assert 1 in island["exit_codes"]
    assert said in island["said"]
