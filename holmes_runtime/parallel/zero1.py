"""Data parallelism with sharded optimizer states (ZeRO stage 1), which exchanges gradients and weights while computing.

Gradients are summed in flat fp32 buckets, in the order in which the backward makes them. A bucket is reduce-scattered
as soon as the last micro-batch has filled it, so each replica gets only the sum of its own part. AdamW updates that
part from fp32 masters. The new weights are all-gathered during the next forward, in which each module waits for its own
just before it is called. Source: Rajbhandari et al., ZeRO, 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.replica_exchange import ReplicaExchange
from holmes_runtime.comm.shard_exchange import start_sum_of_two
from holmes_runtime.comm.stopwatch import Stopwatch, named_range
from holmes_runtime.config.rank_grid import EXPERT_AXES, REPLICA_AXES
from holmes_runtime.config.run_settings import OptimizerSettings
from holmes_runtime.model.tensor_part import TensorPart, has_experts
from holmes_runtime.parallel.gradient_buckets import NO_EXPERTS, Bucket, ExpertBuckets, Shard, make_buckets
from holmes_runtime.parallel.host_states import HostMemory

ADAM_EPS = 1e-8  # Kingma and Ba, 2015


class Zero1:
    """The gradients, optimizer states and weights of all of a rank's stages.

    It owns the gradients and the memory of the weights: other code must not replace `.grad` or `.data`. It leaves
    frozen parameters alone. In each step, call `start()`, run the backwards, call `finish()`, and then `step(...)` or,
    to keep the weights, `publish_update()`. Gradients arrive by hooks or, where none fires, by `gradient_added`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        parts: Mapping[str, TensorPart],
        settings: OptimizerSettings,
        groups: RankGroups,
        num_microbatches: int,
        stopwatch: Stopwatch | None = None,
        bucket_bytes: int | None = None,
        tied: str | None = None,
        is_copy: bool = False,
        offload: bool = False,
    ) -> None:
        """`parts` has, by name, the part of each parameter on this tensor shard. `bucket_bytes` is for tests.

        `tied` is the parameter that the other rank of `groups.tied` also holds, if any; with `is_copy`, this rank's is
        the copy. With `offload`, masters and moments are in host memory, and the CPU updates them bucket by bucket.
        """
        self._settings, self._groups, self._num_microbatches = settings, groups, num_microbatches
        named = _name_parameters(modules)
        all_parts = {name: parts.get(name) or _whole(parameter) for name, parameter in named.items()}
        partial = {name for name, part in all_parts.items() if groups.tp is not None and part.is_whole}
        self._replicas = groups.exchange(REPLICA_AXES)
        # The replicas with the same experts. Under expert parallelism, the other replicas have other experts.
        self._expert_replicas = groups.exchange(EXPERT_AXES) if groups.ep is not None else self._replicas
        memory = HostMemory(next(iter(named.values())).device) if offload else None
        self.tied = tied
        self._buckets = self._make_buckets(modules, named, partial, bucket_bytes, memory)
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._sum_of: dict[Tensor, Tensor] = {}
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                assert parameter.grad is not None
                self._bucket_of[parameter], self._sum_of[parameter] = bucket, parameter.grad
                parameter.register_post_accumulate_grad_hook(self.gradient_added)  # type: ignore[no-untyped-call]
        self._hook(modules)
        self._next_to_send = 0
        self.is_held = False
        self._divisor = 1.0  # for the gradients of the current step
        self._stopwatch = stopwatch or Stopwatch(self._buckets[0].gradient.device)
        by_bucket = [(bucket, list(bucket.shards(all_parts, tied if is_copy else None))) for bucket in self._buckets]
        self._shards = [shard for _, shards in by_bucket for shard in shards]
        # AdamW's kernel reads and increments one step count per shard, in place. The count "" belongs to no shard.
        device = self._buckets[0].master.device
        self._steps = {name: torch.zeros((), device=device) for name in (*(shard.name for shard in self._shards), "")}
        # The buckets of one update: all or, with states in host memory, one, so that copies and updates overlap.
        self._updates = [([each], shards) for each, shards in by_bucket] if offload else [(self._buckets, self._shards)]

    def _make_buckets(
        self,
        modules: Sequence[nn.Module],
        named: dict[str, nn.Parameter],
        partial: Container[str],
        bucket_bytes: int | None,
        memory: HostMemory | None,
    ) -> list[Bucket]:
        """Return all buckets, in the order in which their gradients are made."""
        replicas, names = self._replicas, {parameter: name for name, parameter in named.items()}
        stages = [[{names[each]: each for each in parameters} for _, parameters in units(module)] for module in modules]
        apart = NO_EXPERTS
        if self._groups.ep is not None:
            experts = self._expert_replicas
            apart = ExpertBuckets({name for name in named if has_experts(name)}, experts.size, experts.position)
        return make_buckets(stages, partial, replicas.size, replicas.position, bucket_bytes, self.tied, memory, apart)

    def _hook(self, modules: Sequence[nn.Module]) -> None:
        """Make every module wait for its weights."""
        for module in modules:
            for unit, parameters in units(module):
                unit.register_forward_pre_hook(self._waiting_for(parameters))

    @property
    def steps_taken(self) -> int:
        """The number of AdamW's steps so far, by which it corrects the bias of its first steps."""
        return int(self._steps[""].item())

    @steps_taken.setter
    def steps_taken(self, steps: int) -> None:
        for count in self._steps.values():
            count.fill_(steps)

    def start(self) -> None:
        """Clear the gradients. Call this before the first backward of a step."""
        self._next_to_send = 0
        for bucket in self._buckets:
            bucket.awaited = len(bucket.parameters) * self._num_microbatches
            for parameter in bucket.parameters:
                parameter.grad = None

    def gradient_added(self, parameter: Tensor) -> None:
        """Count one micro-batch's gradient of `parameter`, and send full buckets, in the same order on all replicas.

        The first gradient of a step overwrites the sum of the previous step, which therefore need not be cleared.
        """
        summed = self._sum_of[parameter]
        if parameter.grad is not summed:
            assert parameter.grad is not None
            summed.copy_(parameter.grad)
            parameter.grad = summed
        self._bucket_of[parameter].awaited -= 1
        while self._next_to_send < len(self._buckets) and not self._buckets[self._next_to_send].awaited:
            self._send(self._buckets[self._next_to_send])
            self._next_to_send += 1

    def _send(self, bucket: Bucket) -> None:
        with named_range("reduce-scatter gradients"):
            if bucket.partial_over_tp:
                dist.all_reduce(bucket.gradients, group=self._groups.tp)
            replicas = self._exchange_of(bucket)
            if replicas.size > 1:
                bucket.reduced = replicas.start_reduce_scatter(bucket.gradients)

    def _exchange_of(self, bucket: Bucket) -> ReplicaExchange:
        return self._expert_replicas if bucket.has_experts else self._replicas

    def finish(self, divisor: float) -> Tensor:
        """Wait for this rank's parts of the gradients. Return their sum of squares after division by `divisor`.

        AdamW divides the gradients by `divisor` when it reads them. The sum is a float64 tensor (1,) and covers only
        this rank; summed over all ranks, it is the squared norm.

        Raises:
            RuntimeError: A parameter lacks a micro-batch's gradient, so its bucket was never sent.
        """
        missing = [name for bucket in self._buckets if bucket.awaited for name in bucket.names]
        if missing:
            raise RuntimeError(f"gradients never came for all micro-batches in the bucket of {', '.join(missing)}")
        for buckets, _ in self._updates:
            self._take_in(buckets)
        self._divisor = divisor
        return self._sum_of_squares() / divisor**2

    def _take_in(self, buckets: Sequence[Bucket]) -> None:
        with self._stopwatch.lap("dp"), named_range("await gradients"):
            for bucket in buckets:
                if bucket.reduced is not None:
                    bucket.gradient.copy_(bucket.reduced())
                    bucket.reduced = None
            for bucket in buckets:
                if self.tied in bucket.names:
                    assert self._groups.tied is not None
                    start_sum_of_two(bucket.gradient, self._groups.tied, self._groups.messages_of("tied"))()
        for bucket in buckets:
            if bucket.host is not None:
                bucket.host.fetch(bucket.gradient)

    def _sum_of_squares(self) -> Tensor:
        """Return the sum over shards in float64, so that clipping does not depend on how layers are split over ranks.

        Parameters that several ranks hold whole count once, and copies do not count.
        """
        first_shard = self._groups.tp is None or dist.get_rank(self._groups.tp) == 0
        counted = [
            shard.gradient for shard in self._shards if (first_shard or not shard.part.is_whole) and not shard.is_copy
        ]
        if not counted:
            return torch.zeros(1, dtype=torch.float64, device=self._buckets[0].gradient.device)
        norms = torch._foreach_norm(counted)
        return torch.stack(norms).double().square().sum(0, keepdim=True)

    def step(self, learning_rate: float, norm: Tensor) -> None:
        """Take one AdamW step with the clipped gradients. Only matrices and embeddings decay.

        `norm` is that of all gradients, a float64 scalar on the device. The host waits for it only if it has the
        states. If the norm is not finite, masters and moments stay as they are.
        """
        norm = norm.to(self._steps[""].device)
        overflow = norm.isfinite().logical_not().float()
        divisor = (self._divisor * clip_divisor(norm, self._settings.grad_clip)).float()
        for buckets, shards in self._updates:
            with named_range("update"):
                for bucket in buckets:
                    if bucket.host is not None:
                        bucket.host.wait()
                for decays in (True, False):
                    chosen = [shard for shard in shards if (len(shard.part.shape) >= 2) is decays]
                    if chosen:
                        weight_decay = self._settings.weight_decay if decays else 0.0
                        self._adamw(chosen, learning_rate, weight_decay, divisor, overflow)
            self.publish_update(buckets)
        self._steps[""] += 1 - overflow

    def _adamw(
        self,
        shards: Sequence[Shard],
        learning_rate: float,
        weight_decay: float,
        divisor: Tensor,
        overflow: Tensor,
    ) -> None:
        adamw(
            [shard.master for shard in shards],
            [shard.state_gradient for shard in shards],
            [shard.exp_avg for shard in shards],
            [shard.exp_avg_sq for shard in shards],
            [],
            [self._steps[shard.name] for shard in shards],
            fused=True,
            grad_scale=divisor,
            found_inf=overflow,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )

    def hold(self) -> None:
        """Make the next update publish nothing, as the masters will change once more before `publish` is called."""
        self.is_held = True

    def publish(self, names: Collection[str] | None = None) -> None:
        """Start to copy the masters to the weights on all replicas, first layers first.

        With `names`, publish only the buckets of those parameters, unless an update was held: then publish all.
        """
        has_all = names is None or self.is_held
        self.is_held = False
        self._publish([bucket for bucket in self._buckets if has_all or not set(names or ()).isdisjoint(bucket.names)])

    def publish_update(self, buckets: Sequence[Bucket] | None = None) -> None:
        """Publish the weights of `buckets`, by default of all buckets, unless the update is held."""
        if not self.is_held:
            self._publish(self._buckets if buckets is None else buckets)

    def _publish(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets[::-1]:
            part = bucket.weights[bucket.own]
            if bucket.host is not None:
                bucket.host.publish(part)
            elif part.data_ptr() != bucket.master.data_ptr():
                part.copy_(bucket.master)
            replicas = self._exchange_of(bucket)
            if replicas.size > 1:
                bucket.gathering = replicas.start_all_gather(bucket.weights)

    def wait(self) -> None:
        """Wait until all weights have arrived."""
        self._wait_for(self._buckets)

    def shards(self) -> list[Shard]:
        """Return the pieces of parameters whose optimizer states are on this rank. No piece is empty."""
        return self._shards

    def _waiting_for(self, parameters: Sequence[nn.Parameter]) -> Callable[..., None]:
        buckets = list({id(bucket): bucket for bucket in map(self._bucket_of.__getitem__, parameters)}.values())
        return lambda *_: self._wait_for(buckets)

    def _wait_for(self, buckets: Sequence[Bucket]) -> None:
        awaited = [bucket for bucket in buckets if bucket.gathering is not None]
        if awaited:
            with self._stopwatch.lap("dp"), named_range("await weights"):
                for bucket in awaited:
                    assert bucket.gathering is not None
                    bucket.gathering()
                    bucket.gathering = None


def clip_divisor(norm: Tensor, grad_clip: float | None) -> Tensor:
    """Return the divisor that limits gradients of global norm `norm` to `grad_clip`; 1 without a limit."""
    return torch.ones_like(norm) if grad_clip is None else (norm / grad_clip).clamp(min=1.0)


def _name_parameters(modules: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """Return all trained parameters by name. Raises ValueError if two stages use the same name."""
    named: dict[str, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if name in named:
                raise ValueError(f"parameter {name} is in two stages: name layers as they are in the whole model")
            named[name] = parameter
    return named


def _whole(parameter: nn.Parameter) -> TensorPart:
    shape = tuple(parameter.shape)
    return TensorPart(shape, (0,) * len(shape), shape)


def units(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yield the modules that wait for weights before they run, each with its trained weights.

    An element of a ModuleList or ModuleDict comes with the weights of all its submodules.
    """
    own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
    if own:
        yield module, own
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            for element in child.children():
                yield element, [parameter for parameter in element.parameters() if parameter.requires_grad]
        else:
            yield from units(child)
