"""The step on one machine whose cores all ranks share: waiting ranks leave their cores to those that compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from planner.schedule.simulate import (
    Buckets,
    ReplicaSchedule,
    ReplicaTimeline,
    end_s,
    gathered_s,
    run_pipeline,
    simulate,
)

MAX_SHARING = 256  # micro-batches of a replica that are simulated one by one if cores are shared


def simulate_sharing(pipelines: Sequence[ReplicaSchedule], buckets: Buckets = (), most_faster: float = 1.0) -> float:
    """Return the seconds until the last rank has its gradients, as `simulate` does, with cores as in `run_sharing`.

    With very many micro-batches, some rounds are left out. Each counts as long as the mean of those before it.
    """
    if most_faster == 1.0:
        return simulate(pipelines, buckets)
    pp = pipelines[0].order.pp
    rounds_left_out = (min(each.order.num_microbatches for each in pipelines) - MAX_SHARING) // pp
    window = MAX_SHARING // (2 * pp)
    if rounds_left_out <= 0 or window == 0:
        return end_s(run_sharing(pipelines, buckets, most_faster), buckets)
    longer_s, shorter_s = (
        end_s(run_sharing([each.without(rounds) for each in pipelines], buckets, most_faster), buckets)
        for rounds in (rounds_left_out, rounds_left_out + window)
    )
    return longer_s + rounds_left_out * (longer_s - shorter_s) / window


def run_sharing(
    pipelines: Sequence[ReplicaSchedule], buckets: Buckets = (), most_faster: float = 1.0
) -> list[ReplicaTimeline]:
    """Return the runs of all replicas. Their action seconds hold while all n ranks compute.

    While k compute, each does min(n / k, `most_faster`) times as much: no rank uses more cores than it has threads.
    """
    if most_faster == 1.0:
        return [run_pipeline(each.order.precedence, each.times, buckets) for each in pipelines]
    replicas = [_Replica(pipeline, buckets) for pipeline in pipelines]
    waiting = [_Rank(replica, numbers) for replica in replicas for numbers in replica.run.precedence.by_rank]
    computing: list[_Rank] = []
    num_ranks, now_s = len(waiting), 0.0
    while waiting or computing:
        for rank in [rank for rank in waiting if rank.ready_s() <= now_s]:
            waiting.remove(rank)
            computing.append(rank.begin())
        speed = min(num_ranks / len(computing), most_faster) if computing else 1.0
        ends_s = [now_s + rank.left_s / speed for rank in computing]
        next_s = min([*ends_s, *(rank.ready_s() for rank in waiting)])
        assert next_s < inf, "the schedule waits for itself"
        for rank, rank_end_s in zip(computing[:], ends_s, strict=True):
            rank.left_s -= (next_s - now_s) * speed
            if rank_end_s == next_s:
                computing.remove(rank)
                if rank.ends(next_s):
                    waiting.append(rank)
        now_s = next_s
    return [replica.run for replica in replicas]


class _Replica:
    """A running pipeline. Actions and messages that have not ended or left have no known time yet."""

    def __init__(self, pipeline: ReplicaSchedule, buckets: Buckets) -> None:
        precedence, times = pipeline.order.precedence, pipeline.times
        not_known = [inf] * len(precedence.waits)
        self.run = ReplicaTimeline(precedence, [0.0, *not_known], [0.0, *not_known], times.late_s())
        self.work_s, self.edge_s = times.work_s(), [*times.forward_edge_s, *times.backward_edge_s, 0.0]
        least_end_s = gathered_s(len(precedence.by_rank), times, buckets)
        self.least_end_s = least_end_s + [0.0] * (len(self.work_s) - len(least_end_s))


@dataclass
class _Rank:
    """A rank of a replica: its actions, the number done, and the seconds left of the one that is running."""

    replica: _Replica
    numbers: Sequence[int]
    done: int = 0
    left_s: float = 0.0

    def ready_s(self) -> float:
        """Return when its next action may begin; infinite if its input has not left yet."""
        return self.replica.run.interval(self.numbers[self.done]).start_s

    def begin(self) -> _Rank:
        """Begin the rank's next action and return the rank."""
        _, _, work, *_ = self.replica.run.precedence.waits[self.numbers[self.done] - 1]
        self.left_s = self.replica.work_s[work]
        return self

    def ends(self, now_s: float) -> bool:
        """End the action and send its output. Return True if there is another one."""
        run, number = self.replica.run, self.numbers[self.done]
        _, _, work, ahead, edge = run.precedence.waits[number - 1]
        run.ends_s[number] = max(now_s, self.replica.least_end_s[work])
        run.left_s[number] = max(run.ends_s[number], run.left_s[ahead]) + self.replica.edge_s[edge]
        self.done += 1
        return self.done < len(self.numbers)
