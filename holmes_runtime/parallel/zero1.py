"""Data parallelism with sharded optimizer states: ZeRO stage 1, overlapped on both sides.

Gradients add up in flat fp32 buckets in the order the backward makes them. As soon as the last micro-batch has filled a
bucket it travels, so that each replica gets the sum of its own part alone. AdamW updates that part, from fp32 masters,
and the new weights are gathered while the next forward runs; a module waits for its own just before it is called.
Source: Rajbhandari et al., ZeRO, 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.replica_exchange import ReplicaExchange
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.config.run_settings import Optimizer
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.gradient_buckets import Bucket, Shard, make_buckets

ADAM_EPS = 1e-8  # Kingma and Ba, 2015


class Zero1:
    """Gradients, optimizer states and weights of all stages of one rank.

    Owns the gradients and the memory of the weights: nobody may set `.grad` to None or replace `.data`. Each step:
    `start()`; backwards, whose gradients come in by hooks or, where autograd's are passed by, `gradient_added`;
    `finish()`; then `step(...)`, or nothing to leave the weights as they are.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        parts: Mapping[str, TensorPart],
        settings: Optimizer,
        groups: RankGroups,
        num_microbatches: int,
        stopwatch: Stopwatch | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        """`parts` says of the parameters under tensor parallelism which part is here; `bucket_bytes` is for tests."""
        self._settings, self._groups, self._num_microbatches = settings, groups, num_microbatches
        named = _name_parameters(modules)
        all_parts = {name: parts.get(name) or _whole(parameter) for name, parameter in named.items()}
        partial = {name for name, part in all_parts.items() if groups.tp is not None and part.is_whole}
        self._replicas = ReplicaExchange(groups.replicas)
        self._buckets = make_buckets(named, partial, self._replicas.size, self._replicas.position, bucket_bytes)
        self._bucket_of: dict[Tensor, Bucket] = {}
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                self._bucket_of[parameter] = bucket
                parameter.register_post_accumulate_grad_hook(self.gradient_added)  # type: ignore[no-untyped-call]
        for module in modules:
            for unit, parameters in _units(module):
                unit.register_forward_pre_hook(self._waiting_for(parameters))
        self._next_to_send = 0
        self._stopwatch = stopwatch or Stopwatch(self._buckets[0].gradient.device)
        self._shards = [shard for bucket in self._buckets for shard in bucket.shards(all_parts)]
        # One a shard, since AdamW counts in place; on the device, where its kernel reads them.
        self._steps = [torch.zeros((), device=shard.master.device) for shard in self._shards]
        self._steps_taken = 0

    @property
    def steps_taken(self) -> int:
        """How many steps AdamW has taken, on which its correction for the first ones depends."""
        return self._steps_taken

    @steps_taken.setter
    def steps_taken(self, steps: int) -> None:
        self._steps_taken = steps
        for counted in self._steps:
            counted.fill_(steps)

    def start(self) -> None:
        """Clears the gradients; before the first backward of a step."""
        self._next_to_send = 0
        for bucket in self._buckets:
            bucket.gradients.zero_()
            bucket.awaited = len(bucket.parameters) * self._num_microbatches

    def gradient_added(self, parameter: Tensor) -> None:
        """One micro-batch's gradient of `parameter` was added. Buckets leave in one order, the same on all replicas."""
        self._bucket_of[parameter].awaited -= 1
        while self._next_to_send < len(self._buckets) and not self._buckets[self._next_to_send].awaited:
            self._send(self._buckets[self._next_to_send])
            self._next_to_send += 1

    def _send(self, bucket: Bucket) -> None:
        if bucket.partial_over_tp:
            dist.all_reduce(bucket.gradients, group=self._groups.tp)
        if self._replicas.size > 1:
            bucket.reduced = self._replicas.start_reduce_scatter(bucket.gradients)

    def finish(self, divisor: float) -> Tensor:
        """Waits for this rank's parts of the gradients, divides them, and gives the sum of their squares.

        The sum, float64 (1,), is this rank's: over all ranks they add up to the square of the norm. Raises RuntimeError
        if a parameter got no gradient, which would have left its bucket unsent.
        """
        missing = [name for bucket in self._buckets if bucket.awaited for name in bucket.names]
        if missing:
            raise RuntimeError(f"gradients never came for all micro-batches in the bucket of {', '.join(missing)}")
        with self._stopwatch.lap("dp"):
            for bucket in self._buckets:
                if bucket.reduced is not None:
                    bucket.gradient.copy_(bucket.reduced())
                    bucket.reduced = None
        for bucket in self._buckets:
            bucket.gradient.div_(divisor)
        return self._sum_of_squares()

    def _sum_of_squares(self) -> Tensor:
        """Adds up parameter by parameter in float64, so that the clipping does not depend on where layers are cut."""
        first_shard = self._groups.tp is None or dist.get_rank(self._groups.tp) == 0
        counted = [shard.gradient for shard in self._shards if first_shard or not shard.part.is_whole]
        if not counted:
            return torch.zeros(1, dtype=torch.float64, device=self._buckets[0].gradient.device)
        norms = torch._foreach_norm(counted)
        return torch.stack(norms).double().square().sum(0, keepdim=True)

    def step(self, learning_rate: float, factor: float) -> None:
        """One step of AdamW with the gradients times `factor`; only matrices and embeddings decay."""
        self._steps_taken += 1
        if factor != 1.0:
            for bucket in self._buckets:
                bucket.gradient.mul_(factor)
        for decays in (True, False):
            chosen = [position for position, shard in enumerate(self._shards) if _decays(shard) is decays]
            if chosen:
                self._adamw(chosen, learning_rate, self._settings.weight_decay if decays else 0.0)
        self.publish()

    def _adamw(self, chosen: list[int], learning_rate: float, weight_decay: float) -> None:
        shards = [self._shards[position] for position in chosen]
        adamw(
            [shard.master for shard in shards],
            [shard.gradient for shard in shards],
            [shard.exp_avg for shard in shards],
            [shard.exp_avg_sq for shard in shards],
            [],
            [self._steps[position] for position in chosen],
            fused=True,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )

    def publish(self) -> None:
        """Makes the weights what the masters say, on all replicas: starts to gather them, first layers first."""
        for bucket in self._buckets[::-1]:
            part = bucket.weights[bucket.own]
            if part.data_ptr() != bucket.master.data_ptr():
                part.copy_(bucket.master)
            if self._replicas.size > 1:
                bucket.gathering = self._replicas.start_all_gather(bucket.weights)

    def wait(self) -> None:
        """Waits until all weights are there."""
        self._wait_for(self._buckets)

    def shards(self) -> list[Shard]:
        """The pieces of parameters whose optimizer states are on this rank, none empty."""
        return self._shards

    def _waiting_for(self, parameters: Sequence[nn.Parameter]) -> Callable[..., None]:
        buckets = list({id(bucket): bucket for bucket in map(self._bucket_of.__getitem__, parameters)}.values())
        return lambda *_: self._wait_for(buckets)

    def _wait_for(self, buckets: Sequence[Bucket]) -> None:
        with self._stopwatch.lap("dp"):
            for bucket in buckets:
                if bucket.gathering is not None:
                    bucket.gathering()
                    bucket.gathering = None


def clip_factor(norm: float, grad_clip: float | None) -> float:
    """What gradients of global norm `norm` are multiplied by so that the norm is at most `grad_clip`."""
    return 1.0 if grad_clip is None or norm <= grad_clip else grad_clip / norm


def _name_parameters(modules: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """All parameters by name. Raises ValueError if stages use one name for two of them."""
    named: dict[str, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if name in named:
                raise ValueError(f"parameter {name} is in two stages: name layers as they are in the whole model")
            named[name] = parameter
    return named


def _decays(shard: Shard) -> bool:
    return len(shard.part.shape) >= 2


def _whole(parameter: nn.Parameter) -> TensorPart:
    shape = tuple(parameter.shape)
    return TensorPart(shape, (0,) * len(shape), shape)


def _units(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules that wait for weights before they run, and for which: an element of a list for all it holds."""
    own = list(module.parameters(recurse=False))
    if own:
        yield module, own
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            elements = child.children()
            yield from ((element, list(element.parameters())) for element in elements)
        else:
            yield from _units(child)
