"""The first failure is the one shown: a lost peer is a consequence, not a cause."""

from __future__ import annotations

import ast

from holmes_core.records.run import Failure
from holmes_runtime.config.messages import CHANGED, NOT_FINITE, RankFailed
from launcher.supervise.failure import failure_of, first_cause, is_consequence, likely_reason, shell_exit_code
from tests.test_layers import ROOT


def failure(host: str, exit_code: int, message: str, time_s: float) -> Failure:
    lines = ()
    return Failure(
        host=host, cluster="c", rank=0, exit_code=exit_code, message=message, last_lines=lines, time_s=time_s
    )


def test_killed_rank_goes_before_peers_that_lost_it_even_if_reported_later() -> None:
    peer = failure("a", 1, "RuntimeError: Connection closed by peer [10.0.0.1]:1", time_s=1.0)
    killed = failure("b", -9, "Signal 9 (SIGKILL) received", time_s=2.0)
    assert first_cause([peer, killed]) is killed


def test_rank_ended_by_its_torchrun_is_no_cause() -> None:
    ended = failure("a", -15, "Signal 15 (SIGTERM) received", time_s=1.0)
    raised = failure("b", 1, "ValueError: bad", time_s=2.0)
    assert first_cause([ended, raised]) is raised


def test_full_disk_is_a_cause_though_peers_are_named_beside_it() -> None:
    peer = failure("a", 1, "RuntimeError: Connection closed by peer [10.0.0.1]:1", time_s=1.0)
    full = failure("b", 1, "Connection closed by peer [10.0.0.2]:1\nNo space left on device: /home/b", time_s=2.0)
    assert first_cause([peer, full]) is full


def test_a_change_on_the_way_goes_before_what_came_of_it_and_says_what_to_do() -> None:
    lost = failure("a", 1, "RuntimeError: something odd of the store", time_s=1.0)
    said = f"FrameAltered: what rank 3 on b1 sent to rank 0 on a1 {CHANGED}: a control record"
    changed = failure("b", 1, f"{said}\nConnection closed by peer", time_s=2.0)
    assert first_cause([lost, changed]) is changed
    assert not is_consequence(changed)
    likely = failure_of(None, RankFailed(0, 1, said, 2.0), host_lost=False).likely
    assert "None of it was saved" in str(likely)
    assert "{between_clusters: wireguard}" in str(likely)


def test_a_rank_that_printed_of_a_change_before_it_was_killed_was_killed() -> None:
    lines = (f"outer sync 3 of the islands is repeated: what rank 1 of island 0 sent to rank 0 of another {CHANGED}",)
    killed = RankFailed(0, -9, "Signal 9 (SIGKILL) received", 2.0, lines, oom_kills=1)
    assert "out-of-memory" in str(failure_of(None, killed, host_lost=False).likely)


def test_earliest_of_equal_causes_is_first() -> None:
    late, early = failure("a", 1, "ValueError: x", 2.0), failure("b", 1, "ValueError: y", 1.0)
    assert first_cause([late, early]) is early


def test_signal_becomes_the_exit_code_of_a_shell() -> None:
    assert (shell_exit_code(-9), shell_exit_code(3)) == (137, 3)


def test_killed_rank_is_blamed_on_memory_only_when_the_kernel_says_so() -> None:
    assert "out-of-memory" in str(likely_reason(-9, "", oom_kills=1))
    assert "no out-of-memory kill" in str(likely_reason(-9, "", oom_kills=0))


def test_full_disk_is_told_from_the_last_lines() -> None:
    assert "disk is full" in str(likely_reason(1, "OSError: [Errno 28] No space left on device", 0))
    assert likely_reason(1, "ValueError: odd", 0) is None


def test_no_notice_of_a_run_that_goes_on_has_the_mark_of_a_failure_by_numbers() -> None:
    """Ranks print notices, which are last lines of a later failure."""
    files = (ROOT / "holmes_runtime").rglob("*.py")
    calls = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    said = [ast.unparse(call) for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "say"]
    assert len(said) > 5
    assert [each for each in said if NOT_FINITE in each] == []
