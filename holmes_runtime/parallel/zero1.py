"""Data parallelism with sharded optimizer states: ZeRO stage 1, overlapped on both sides.

Gradients add up in flat fp32 buckets in the order the backward makes them. As soon as the last micro-batch has filled a
bucket it travels, so that each replica gets the sum of its own part alone. AdamW updates that part, from fp32 masters,
and the new weights are gathered while the next forward runs; a module waits for its own just before it is called.
Source: Rajbhandari et al., ZeRO, 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from holmes_runtime.comm.process_groups import RankGroups, start_all_gather, start_reduce_scatter
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.config.run_settings import Optimizer
from holmes_runtime.model.decoder import TensorPart

BUCKET_BYTES = 4 * 2**20  # bytes of gradients; large enough to fill a link, small enough to start early
MAX_BUCKETS = 64  # of a large model; what is still to be sent when the last backward ends is one of them
ADAM_EPS = 1e-8  # Kingma and Ba, 2015


@dataclass(frozen=True)
class Shard:
    """The piece of one parameter whose optimizer state is on this rank: all that a checkpoint needs to know.

    `part` says which part of the whole parameter this tensor shard has; flattened, row by row, this rank holds numbers
    [start, stop) of that part. master (the weights), exp_avg, exp_avg_sq (AdamW's moments) and gradient (the mean of
    the last step) are fp32 (stop - start,): views, to be read and loaded in place.
    """

    name: str
    part: TensorPart
    start: int
    stop: int
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor


@dataclass
class _Bucket:
    """Parameters that travel together. gradients: fp32 (elements,), weights: (elements,); parameters are views of both.

    master, exp_avg, exp_avg_sq and gradient are fp32 (elements / dp,); in fp32 master is a view of weights. Elements
    are padded to a multiple of dp.
    """

    names: list[str]
    parameters: list[nn.Parameter]
    gradients: Tensor
    weights: Tensor
    own: slice
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor
    partial_over_tp: bool
    awaited: int = 0
    reduced: Callable[[], Tensor] | None = None
    gathering: Callable[[], Tensor] | None = field(default=None, repr=False)


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
        self._named = _name_parameters(modules)
        self._parts = {name: parts.get(name) or _whole(parameter) for name, parameter in self._named.items()}
        # A backward makes the gradients of the last parameters first. Those that are whole on every tensor shard have
        # seen a stretch of the sequence only; in buckets of their own they are added up over shards as well.
        backward_order = list(self._named)[::-1]
        total_bytes = 4 * sum(parameter.numel() for parameter in self._named.values())
        bucket_bytes = bucket_bytes or max(BUCKET_BYTES, total_bytes // MAX_BUCKETS)
        whole = [name for name in backward_order if groups.tp is not None and self._parts[name].is_whole]
        split = [name for name in backward_order if name not in set(whole)]
        cuts = [*_partition(split, self._named, bucket_bytes), *_partition(whole, self._named, bucket_bytes)]
        self._buckets = [self._make_bucket(names, names[0] in set(whole)) for names in cuts]
        self._bucket_of: dict[Tensor, _Bucket] = {}
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                self._bucket_of[parameter] = bucket
                parameter.register_post_accumulate_grad_hook(self.gradient_added)  # type: ignore[no-untyped-call]
        for module in modules:
            for unit, parameters in _units(module):
                unit.register_forward_pre_hook(self._waiting_for(parameters))
        self._next_to_send = 0
        self._stopwatch = stopwatch or Stopwatch(self._buckets[0].gradient.device)
        self._shards = [shard for bucket in self._buckets for shard in self._shards_of(bucket)]
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

    def _send(self, bucket: _Bucket) -> None:
        if bucket.partial_over_tp:
            dist.all_reduce(bucket.gradients, group=self._groups.tp)
        if self._groups.dp is not None:
            bucket.reduced = start_reduce_scatter(bucket.gradients, self._groups.dp)

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
            if self._groups.dp is not None:
                bucket.gathering = start_all_gather(bucket.weights, self._groups.dp)

    def wait(self) -> None:
        """Waits until all weights are there."""
        self._wait_for(self._buckets)

    def shards(self) -> list[Shard]:
        """The pieces of parameters this rank is answerable for, none empty."""
        return self._shards

    def _shards_of(self, bucket: _Bucket) -> Iterator[Shard]:
        first = 0  # where the parameter starts in the bucket
        for name in bucket.names:
            stop = first + self._named[name].numel()
            low, high = max(first, bucket.own.start), min(stop, bucket.own.stop)
            if low < high:
                mine = slice(low - bucket.own.start, high - bucket.own.start)
                states = (bucket.master, bucket.exp_avg, bucket.exp_avg_sq, bucket.gradient)
                yield Shard(name, self._parts[name], low - first, high - first, *(state[mine] for state in states))
            first = stop

    def _make_bucket(self, names: list[str], partial_over_tp: bool) -> _Bucket:
        """A bucket that the weights of `names` have moved into, and whose parts are their `.grad`."""
        parameters = [self._named[name] for name in names]
        dp, dp_rank = (1, 0) if self._groups.dp is None else (self._groups.dp.size(), self._groups.dp.rank())
        sizes = [parameter.numel() for parameter in parameters]
        part = -(-sum(sizes) // dp)
        own = slice(dp_rank * part, (dp_rank + 1) * part)
        gradients = torch.zeros(part * dp, dtype=torch.float32, device=parameters[0].device)
        weights = torch.zeros(part * dp, dtype=parameters[0].dtype, device=parameters[0].device)
        first = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            place = slice(first, first + size)
            weights[place] = parameter.detach().flatten()
            parameter.data = weights[place].view_as(parameter)
            parameter.grad_dtype = torch.float32
            parameter.grad = gradients[place].view_as(parameter)
            first += size
        master = weights[own]
        return _Bucket(
            names,
            parameters,
            gradients,
            weights,
            own,
            master=master if master.dtype == torch.float32 else master.float(),
            exp_avg=torch.zeros_like(gradients[own]),
            exp_avg_sq=torch.zeros_like(gradients[own]),
            gradient=gradients if dp == 1 else torch.zeros_like(gradients[own]),
            partial_over_tp=partial_over_tp,
        )

    def _waiting_for(self, parameters: Sequence[nn.Parameter]) -> Callable[..., None]:
        buckets = list({id(bucket): bucket for bucket in map(self._bucket_of.__getitem__, parameters)}.values())
        return lambda *_: self._wait_for(buckets)

    def _wait_for(self, buckets: Sequence[_Bucket]) -> None:
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
    """Modules to wait in front of, with the parameters to wait for: elements of lists whole, others by their own."""
    own = list(module.parameters(recurse=False))
    if own:
        yield module, own
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            elements = child.children()
            yield from ((element, list(element.parameters())) for element in elements)
        else:
            yield from _units(child)


def _partition(names: list[str], named: Mapping[str, nn.Parameter], bucket_bytes: int) -> list[list[str]]:
    """`names` in order, cut wherever a part's gradients have reached `bucket_bytes`."""
    parts: list[list[str]] = []
    size = bucket_bytes
    for name in names:
        if size >= bucket_bytes:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += 4 * named[name].numel()
    return parts
