"""The process groups that the hooks of a trainer's ranks report, and a notice if none is reported."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_core.records.plan import Plan
from holmes_runtime.config.rank_metrics import GroupRecord, RankNotice
from launcher.journal.run_events import Notice

_NO_HOOK = (
    "no rank has reported a process group: groups are not on the plan's networks. Run Python without -S, -I and -E, "
    "and keep the PYTHONPATH that the command gets"
)


class TrainerGroups:
    """The groups of one attempt so far. Of equal reports only the first counts."""

    def __init__(self, plan: Plan) -> None:
        self._expects_some = not plan.job.is_bundled and plan.world_size > 1
        self._sentences: set[str] = set()

    def take_notice(self, notice: RankNotice) -> Iterator[Notice]:
        """Yield the notice of a hook, which a trainer's rank does not print. Equal notices are yielded once."""
        if notice.sentence not in self._sentences:
            self._sentences.add(notice.sentence)
            yield Notice(f"rank {notice.rank}: {notice.sentence}")

    def take_group(self, group: GroupRecord) -> Iterator[Notice | GroupRecord]:
        """Yield the group, as reported by its first member, and a notice of interfaces that no plan names."""
        self._expects_some = False
        if group.others:
            used = (
                f"while group {group.name} was made on {group.interface}, sockets opened on {', '.join(group.others)}"
            )
            yield Notice(f"rank {group.rank}: {used}")
        if group.ranks and group.rank == min(group.ranks):
            yield group

    def missing(self) -> Iterator[Notice]:
        """Yield a notice, once, if there should have been a group by now."""
        if self._expects_some:
            self._expects_some = False
            yield Notice(_NO_HOOK)
