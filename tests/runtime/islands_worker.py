"""`python -m tests.runtime.islands_worker FOLDER NAME...`: islands that meet, are killed, come late and come back.

The scenarios of `NAME` are left out.
Torch is imported once and the ranks of each run are forked from it; what they run is `train`, as under torchrun.
FOLDER/islands.json holds for each island of each scenario its losses, how its ranks ended, what they exchanged and
said.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from holmes_runtime.config.islands.membership_messages import Decision, Look, Standing, decision_key
from holmes_runtime.config.islands.rendezvous_messages import MEETING
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings, EvaluationSettings
from holmes_runtime.config.strict_json import parse
from holmes_runtime.config.trainable import Lora
from holmes_runtime.outer import mean_exchange, state_transfer
from holmes_runtime.outer.lane_exchange import carry
from holmes_runtime.outer.rendezvous_store import RendezvousStore, open_meeting
from holmes_runtime.trainer import StepResult, Trainer
from tests.free_ports import free_port

from .forked_ranks import enter
from .launched_runs import ONE_ISLAND, make_config, read_metrics
from .meeting_place import MeetingPlace

LIMIT_S = 300.0  # of anything that is waited for, however busy the machine
H, STEPS, LONG = 4, 24, 40
FEW = 8  # steps between two exchanges, where they are rare
SLOW_AFTER, SLOW_STEP_S = 8, 1.5
PIPELINE: dict[str, Any] = {"pipelines": ((0, 1),), "cuts": (0, 1, 3)}
REPLICAS: dict[str, Any] = {"pipelines": ((0,), (1,)), "cuts": (0, 3)}
THREE: dict[str, Any] = {"pipelines": ((0,), (1,), (2,)), "cuts": (0, 3), "microbatches": (3, 3, 2)}
SHARDS: dict[str, Any] = {"shards": (((0,),), ((1,),)), "cuts": (0, 3)}
ALONE: dict[str, Any] = {}
FIVE = [ALONE, ALONE, PIPELINE, ALONE, REPLICAS]
LORA = Lora(rank=4, targets=("qkv", "down"))

Gates = Mapping[int, Callable[[], None]]
"""By step what a rank does before it takes the step."""


class Island:
    """One island's ranks. `config` without outer_sync makes an ordinary run."""

    def __init__(self, folder: Path, config: RunConfig, meeting: str, before: Callable[[], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._config = folder, config

        def prepare() -> None:
            os.environ[MEETING] = meeting
            before()

        fork, port = multiprocessing.get_context("fork"), free_port()
        self.ranks: list[BaseProcess] = [
            fork.Process(target=enter, args=(config, rank, port, folder, prepare, None))
            for rank in range(config.world_size)
        ]
        for process in self.ranks:
            process.start()

    def lines(self) -> dict[int, list[dict[str, Any]]]:
        """The metrics so far, by rank."""
        return read_metrics(self._folder / "metrics")

    def kill(self) -> None:
        """As a host that loses its power."""
        for process in self.ranks:
            process.kill()

    def ended(self) -> dict[str, Any]:
        """What it has come to."""
        for process in self.ranks:
            process.join(LIMIT_S)
            if process.exitcode is None:
                process.kill()
        metrics = self.lines()
        own = next((lines for lines in metrics.values() if lines and lines[0]["loss"] is not None), [])
        return {
            "exit_codes": [process.exitcode for process in self.ranks],
            "steps": [line["step"] for line in own],
            "losses": [line["loss"] for line in own],
            "evaluations": [line["eval_loss"] for line in own if line["eval_loss"] is not None],
            "outer": {
                rank: [line["outer"] | {"step": line["step"]} for line in lines if line["outer"]]
                for rank, lines in metrics.items()
            },
            "said": self.said(),
        }

    def said(self) -> str:
        """What its ranks have said so far."""
        return "".join((self._folder / f"rank{rank}.log").read_text() for rank in range(len(self.ranks)))


class Worker:
    """The scenarios of one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._corpus = folder / "text.txt"
        self._corpus.write_bytes(bytes(range(32, 127)) * 40)
        self.results: dict[str, list[dict[str, Any]]] = {}

    def store(self, num_islands: int = 2) -> MeetingPlace:
        return MeetingPlace(num_islands)

    def config(
        self,
        plan: dict[str, Any],
        outer: dict[str, Any] | None,
        island: int = 0,
        saved: Path | None = None,
        resume: bool = False,
        steps: int = STEPS,
    ) -> RunConfig:
        saving = CheckpointSettings(str(saved), 100, 2, 1) if saved else None
        plain = make_config(self._corpus, steps=steps, checkpoint=saving, resume=resume, **plan)
        if outer is None:
            return plain
        batch = plain.global_batch_size * outer.get("inner_steps", H)
        own = {"island": island, "grace_s": 60.0, "samples_before": island * batch}
        own["round_samples"] = outer.get("num_islands", 2) * batch
        sync = replace(ONE_ISLAND, num_islands=2, outer_rate=0.7, momentum=0.9, interfaces=("lo",) * plain.world_size)
        return replace(plain, outer_sync=replace(sync, **{**own, **outer}))

    def start(
        self, name: str, store: MeetingPlace | None, config: RunConfig, before: Callable[[], None] = lambda: None
    ) -> Island:
        meeting = store.addresses[config.outer_sync.island] if store and config.outer_sync else ""
        return Island(self.folder / name.replace(" ", "-"), config, meeting, before)

    def note(self, name: str, *islands: Island) -> None:
        self.results[name] = [island.ended() for island in islands]
        (self.folder / "islands.json").write_text(json.dumps(self.results))

    def together(self, name: str, plans: list[dict[str, Any]], **outer: Any) -> None:
        """Islands that nothing happens to."""
        store = self.store(len(plans))
        outer["num_islands"] = len(plans)
        configs = [self.config(plan, outer, island) for island, plan in enumerate(plans)]
        self.note(name, *(self.start(f"{name} {number}", store, config) for number, config in enumerate(configs)))

    def averaged_once(self, name: str) -> None:
        """Two islands that train apart on data of their own until their only exchange."""
        store = self.store()
        configs = self.apart()
        self.note(name, *(self.start(f"{name} {number}", store, config) for number, config in enumerate(configs)))

    def apart(self) -> list[RunConfig]:
        """Two islands that train for one round, each on its own text; the second reads half as many samples."""
        more: dict[str, Any] = {"evaluation": EvaluationSettings(STEPS, 1), "validation_fraction": 0.2}
        configs = []
        for island, samples in enumerate((8, 4)):
            own = {"inner_steps": STEPS, "samples_before": 0, "round_samples": STEPS * samples}
            config = self.config({**more, "microbatches": (samples,)}, own, island)
            text = self.folder / f"text-{island}.txt"
            text.write_bytes(bytes(range(32 + 9 * island, 127)) * 40)
            configs.append(replace(config, data=replace(config.data, path=str(text))))
        return configs

    def by_itself(self, name: str, plan: dict[str, Any], **outer: Any) -> None:
        """One island of one, which keeps nothing back, beside an ordinary run."""
        store, only = self.store(1), {"num_islands": 1, "outer_rate": 1.0, "momentum": 0.0, "round_samples": 32}
        island = self.start(f"{name} island", store, self.config(plan, {**only, **outer}))
        self.note(name, self.start(f"{name} plain", None, self.config(plan, None)), island)

    def stopped(self, name: str, plans: list[dict[str, Any]], stops_at: int, **outer: Any) -> None:
        """Two islands without and with a stop after which they go on from what they saved, in another store."""
        self.together(f"{name} uninterrupted", plans, **outer)
        saved = [self.folder / f"saved-{name.replace(' ', '-')}-{island}" for island in range(2)]
        for part, resume in (("stopped", False), ("resumed", True)):
            store = self.store()
            configs = [self.config(plan, outer, at, saved[at], resume) for at, plan in enumerate(plans)]
            before = (lambda: None) if resume else (lambda: stop_after(stops_at))
            self.note(
                f"{name} {part}",
                *(self.start(f"{name} {part} {at}", store, config, before) for at, config in enumerate(configs)),
            )

    def lose(self, island: Island, after: int, told: Path) -> dict[str, Any]:
        """What an island has come to that is killed after more than so many steps; then the file `told` is there."""
        until(lambda: any(len(lines) > after for lines in island.lines().values()))()
        island.kill()
        lost = island.ended()
        told.touch()
        return lost

    def killed(self, name: str, **outer: Any) -> None:
        """Island 1 is killed after a round; island 0 goes on; island 1 begins anew, with nothing, and joins."""
        store, done = self.store(), self.folder / f"{name} is killed"
        gates = {9: until(done.exists), 17: until_it_has_come(island=1, start=2)}
        first = self.start(f"{name} 0", store, self.config(PIPELINE, outer), lambda: open_gates(gates))
        second = self.start(f"{name} 1", store, self.config(REPLICAS, outer, 1))
        lost = self.lose(second, H, done)
        again = self.start(f"{name} 1 again", store, self.config(PIPELINE, outer, 1))
        self.note(name, first, again)
        self.results[name].append(lost)

    def dies_within(self, name: str, **outer: Any) -> None:
        """Island 1 dies within its second exchange, once it was agreed on; the controller notices later."""
        store, folder = self.store(), self.folder / f"{name} 0".replace(" ", "-")
        first = self.start(f"{name} 0", store, self.config(REPLICAS, outer))
        second = self.start(f"{name} 1", store, self.config(PIPELINE, outer, 1), lambda: in_second_exchange(die))
        until(lambda: has_held(folder, 1))()
        store.meeting.lose(1)  # else the last exchange waits a minute for it
        self.note(name, first, second)

    def cut_off_within(self, name: str, **outer: Any) -> None:
        """Island 1 is heard of no more in its second exchange, as without its network; the controller notices."""
        store = self.store()
        first = self.start(f"{name} 0", store, self.config(REPLICAS, outer))
        second = self.start(f"{name} 1", store, self.config(ALONE, outer, 1), lambda: in_second_exchange(halt))
        until(lambda: is_halted(second.ranks[0]))()
        store.meeting.lose(1)
        results = first.ended()
        second.kill()
        self.note(name, second)
        self.results[name].insert(0, results)

    def silent_within(self, name: str, **outer: Any) -> None:
        """Island 1 is not heard in its second exchange, until the other has held it alone, and is heard again then."""
        store, folder = self.store(), self.folder / f"{name} 0".replace(" ", "-")
        gates = {17: until_it_has_come(island=1, slot=3)}
        first = self.start(f"{name} 0", store, self.config(REPLICAS, outer), lambda: open_gates(gates))
        second = self.start(f"{name} 1", store, self.config(ALONE, outer, 1), lambda: in_second_exchange(halt))
        (silent,) = second.ranks
        until(lambda: is_halted(silent))()
        store.meeting.hear(1, is_heard=False)
        until(lambda: has_held(folder, 1))()
        store.meeting.hear(1, is_heard=True)
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGCONT)
        self.note(name, first, second)

    def late(self, name: str, **outer: Any) -> None:
        """Island 1 comes to its second exchange when island 0 has held it alone."""
        store, folder = self.store(), self.folder / f"{name} 0".replace(" ", "-")
        gates = {17: until_it_has_come(island=1, slot=2)}
        first = self.start(f"{name} 0", store, self.config(ALONE, outer), lambda: open_gates(gates))
        late = {6: until(lambda: has_held(folder, 1))}
        second = self.start(f"{name} 1", store, self.config(REPLICAS, outer, 1), lambda: open_gates(late))
        self.note(name, first, second)

    def called(self, name: str, **outer: Any) -> None:
        """Island 1 is killed after a round of many steps and comes back, long before island 0's next exchange."""
        store, done = self.store(), self.folder / f"{name} is killed"
        outer["inner_steps"] = FEW
        first = self.start(f"{name} 0", store, self.config(REPLICAS, outer), lambda: call_at(FEW + 5, done.exists))
        gates = {FEW + 1: until(done.exists)}  # else it may call island 0 to the next exchange before it is killed
        second = self.start(f"{name} 1", store, self.config(ALONE, outer, 1), lambda: open_gates(gates))
        lost = self.lose(second, FEW, done)
        again = self.start(f"{name} 1 again", store, self.config(ALONE, outer, 1))
        self.note(name, first, again)
        self.results[name].append(lost)

    def followed(self, name: str, plans: list[dict[str, Any]], **outer: Any) -> None:
        """The last island comes back, and the state is so long on its way that the others exchange twice meanwhile."""
        last, done = len(plans) - 1, self.folder / f"{name} is killed"
        store, outer = self.store(len(plans)), {**outer, "num_islands": len(plans)}
        gates = {9: until(done.exists), 10: until_it_has_come(island=last, start=2)}

        def before() -> None:
            open_gates(gates)
            hold_back_state(until_decided(after=2))

        others = [
            self.start(f"{name} {island}", store, self.config(plans[island], outer, island, steps=LONG), before)
            for island in range(last)
        ]
        lost = self.lose(self.start(f"{name} last", store, self.config(ALONE, outer, last, steps=LONG)), H, done)
        again = self.start(f"{name} again", store, self.config(plans[last], outer, last, steps=LONG))
        self.note(name, *others, again)
        self.results[name].append(lost)

    def giver_ends(self, name: str, how: Callable[[], None], **outer: Any) -> None:
        """Island 2 comes back, and who gives it the state dies, or halts, as the controller then notices."""
        store, done = self.store(3), self.folder / f"{name} is killed"
        outer["num_islands"] = 3
        gates = {9: until(done.exists), 10: until_it_has_come(island=2, start=2)}

        def before() -> None:
            open_gates(gates)
            hold_back_state(how)

        first = self.start(f"{name} 0", store, self.config(ALONE, outer), before)
        second = self.start(f"{name} 1", store, self.config(REPLICAS, outer, 1), lambda: open_gates(gates))
        third = self.start(f"{name} 2", store, self.config(ALONE, outer, 2))
        self.lose(third, H, done)
        again = self.start(f"{name} 2 again", store, self.config(ALONE, outer, 2))
        (giver,) = first.ranks
        until(lambda: giver.exitcode is not None or is_halted(giver))()
        store.meeting.lose(0)
        self.note(name, second, again)
        first.kill()

    def newcomer_dies(self, name: str, **outer: Any) -> None:
        """Island 1 comes back and dies when it is given the state, which the controller notices."""
        store, done = self.store(), self.folder / f"{name} is killed"
        gates = {9: until(done.exists), 10: until_it_has_come(island=1, start=2)}
        begun, died = (self.folder / f"{name}: {what}" for what in ("has begun", "has died"))

        def wait() -> None:
            begun.touch()
            until(died.exists)()

        def before() -> None:
            open_gates(gates)
            hold_back_state(wait)

        first = self.start(f"{name} 0", store, self.config(REPLICAS, outer), before)
        second = self.start(f"{name} 1", store, self.config(ALONE, outer, 1))
        self.lose(second, H, done)
        again = self.start(f"{name} 1 again", store, self.config(ALONE, outer, 1))
        until(begun.exists)()
        again.kill()
        again.ended()
        died.touch()
        until(
            lambda: "island 1 has not received the whole state: " in first.said()
        )()  # says one rank; the other waits on
        store.meeting.lose(1)
        self.note(name, first)

    def slow(self, name: str, **outer: Any) -> None:
        """After their first exchange island 1 takes so long for a step that the other would not wait for it."""
        store = self.store()
        more: dict[str, Any] = {"evaluation": EvaluationSettings(SLOW_AFTER, 1), "validation_fraction": 0.2}
        first = self.start(f"{name} 0", store, self.config({**ALONE, **more}, outer))
        late = self.config({**PIPELINE, **more}, outer, 1)
        second = self.start(f"{name} 1", store, late, lambda: slow_down(SLOW_AFTER))
        self.note(name, first, second)

    def all(self, left_out: Collection[str]) -> None:
        """Every scenario that is not left out."""
        sharded = {**REPLICAS, "zero": 3}
        adapted = [{**plan, "lora": LORA} for plan in (ALONE, PIPELINE)]
        streaming: dict[str, Any] = {"fragments": 2, "delay_steps": 1}
        packed = {**streaming, "codec": "int8"}
        rarely: dict[str, Any] = {"inner_steps": SLOW_AFTER, "grace_s": 10.0}
        thirds = {**rarely, "inner_steps": 3 * SLOW_AFTER, "fragments": 3, "delay_steps": 2, "codec": "int8"}
        scenarios: dict[str, Callable[[str], None]] = {
            "int4": partial(self.together, plans=[ALONE, ALONE], codec="int4"),
            "two and three": partial(self.together, plans=[SHARDS, THREE], codec="int8"),
            "streaming": partial(self.together, plans=[ALONE, ALONE], **packed),
            "five": partial(self.together, plans=[ALONE] * 5, codec="none"),
            "five, streaming": partial(self.together, plans=FIVE, **packed),
            "averaged once": self.averaged_once,
            "adapters": partial(self.together, plans=adapted, codec="int4"),
            "sharded weights": partial(self.together, plans=[sharded, PIPELINE], **packed),
            "alone": partial(self.by_itself, plan=REPLICAS),
            "alone, sharded weights": partial(self.by_itself, plan=sharded, **streaming),
            "alone, streaming": partial(self.by_itself, plan=PIPELINE, **streaming, codec="int4"),
            "resume": partial(self.stopped, plans=[PIPELINE, REPLICAS], stops_at=6, codec="int4", delay_steps=3),
            "killed": partial(self.killed, grace_s=3.0, codec="int8"),
            "dies within": partial(self.dies_within, grace_s=3.0),
            "cut off within": partial(self.cut_off_within, grace_s=3.0),
            "silent within": partial(self.silent_within, grace_s=3.0),
            "late": partial(self.late, grace_s=3.0, codec="int4", delay_steps=1),
            "called": partial(self.called, grace_s=3.0),
            "followed": partial(self.followed, plans=[REPLICAS, PIPELINE], grace_s=60.0, **packed),
            "followed, one alone": partial(self.followed, plans=[ALONE, ALONE], grace_s=60.0),
            "followed, five": partial(self.followed, plans=FIVE, grace_s=60.0, **packed),
            "giver dies": partial(self.giver_ends, how=die, grace_s=3.0),
            "giver halts": partial(self.giver_ends, how=halt, grace_s=3.0),
            "newcomer dies": partial(self.newcomer_dies, grace_s=3.0),
            "slow": partial(self.slow, **rarely),
            "slow, late": partial(self.slow, **rarely, delay_steps=2),
            "slow, streaming": partial(self.slow, **thirds),
        }
        for name, make in scenarios.items():
            if name not in left_out:
                make(name)


def before_steps(act: Callable[[Trainer, int], None]) -> None:
    """From now on every rank of this process does that before a step."""
    take_step = Trainer.step

    def step(trainer: Trainer, number: int) -> StepResult:
        act(trainer, number)
        return take_step(trainer, number)

    Trainer.step = step  # type: ignore[method-assign, assignment]


def stop_after(steps: int) -> None:
    """The run ends in order after so many steps."""
    before_steps(lambda trainer, step: trainer.ask_to_stop() if step == steps - 1 else None)


def open_gates(gates: Gates) -> None:
    """A rank waits at its gates."""
    before_steps(lambda _, step: gates.get(step, lambda: None)())


def slow_down(after: int) -> None:
    """From then on a step takes longer."""
    before_steps(lambda _, step: time.sleep(SLOW_STEP_S) if step >= after else None)


def call_at(step: int, is_lost: Callable[[], bool]) -> None:
    """Before that step a rank waits until the other island is lost and back, and has its island called to it."""
    called, ask = threading.Event(), Trainer.ask_for_exchange

    def ask_and_tell(trainer: Trainer, exchange: int) -> None:
        ask(trainer, exchange)
        called.set()

    def act(trainer: Trainer, number: int) -> None:
        if number == step:
            until(is_lost)()
            until_it_has_come(island=1, start=2)()
            if trainer.me.rank == 0:
                until(called.is_set)()

    Trainer.ask_for_exchange = ask_and_tell  # type: ignore[method-assign, assignment]
    before_steps(act)


def hold_back_state(act: Callable[[], None]) -> None:
    """A rank of this process does that before a piece of the state leaves that it gives to another island."""

    def carry_later(*arguments: Any) -> int:
        act()
        return carry(*arguments)

    state_transfer.carry = carry_later  # type: ignore[attr-defined, assignment]


def until_decided(after: int) -> Callable[[], None]:
    """Waits until islands have agreed on so many exchanges more than when it first waits."""

    def wait() -> None:
        num_rosters = standing().num_rosters
        until(lambda: standing().num_rosters >= num_rosters + after)()

    return wait


@cache  # in the process that waits: each store has a connection for good
def store_here() -> RendezvousStore:
    return open_meeting(os.environ, LIMIT_S)


def standing() -> Standing:
    return parse(Standing, store_here().tell(Look()))


def until(holds: Callable[[], bool]) -> Callable[[], None]:
    """Waits until that holds."""

    def wait() -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    return wait


def until_it_has_come(island: int, start: int = 1, slot: int = 0) -> Callable[[], None]:
    """Waits until the island has come to a slot from `slot` on, having begun for the `start`th time."""

    def has_come() -> bool:
        now, store = standing(), store_here()
        if now.num_rosters >= slot and any(each.island == island and each.start >= start for each in now.waiting):
            return True
        keys = [decision_key(island, start, meeting) for meeting in range(1, 20)]
        decisions = [parse(Decision, store.get(key).decode()) for key in keys if store.check([key])]
        return any(each.roster is not None and each.roster.round_id >= slot for each in decisions)

    return until(has_come)


def in_second_exchange(act: Callable[[], None]) -> None:
    """The process does that as soon as it has something to send in its second exchange."""
    held: list[int] = []

    def carry_or_act(*arguments: Any) -> int:
        held.append(1)
        if len(held) == 2:  # of two islands each carries its parts once
            act()
        return carry(*arguments)

    mean_exchange.carry = carry_or_act  # type: ignore[attr-defined, assignment]


def die() -> None:
    os._exit(9)


def halt() -> None:
    """Nothing of this process is heard any more, and its connections stay."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to a process it comes once this thread has gone on


def has_held(folder: Path, exchange: int) -> bool:
    """Whether an island's rank 0 has told of that exchange."""
    lines = read_metrics(folder / "metrics").get(0, [])
    return any(line["outer"] and line["outer"]["exchange"] == exchange for line in lines)


def is_halted(process: BaseProcess) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
    return stat.rpartition(")")[2].split()[0] == "T"


if __name__ == "__main__":
    Worker(Path(sys.argv[1])).all(sys.argv[2:])
