"""A backward in two halves: the gradient of a stage's input at once, the gradients of its parameters later.

The input half runs autograd from the output to the input. It keeps the gradients at the nodes where branches to
parameters leave that path. The weight half continues on those branches. Source of the split: Qi et al., Zero Bubble
Pipeline Parallelism, 2023.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from holmes_runtime.model.tensor_parallel import backward_half


@dataclass
class WeightGroup:
    """Parameters whose branches leave the input's path at the same `nodes`, and the gradients kept there."""

    nodes: set[Node]
    parameters: list[nn.Parameter]
    gradients: dict[Node, Sequence[Tensor | None]] = field(default_factory=dict)


def backward_input(
    output: Tensor, gradient: Tensor | None, hidden: Tensor, parameters: Iterable[nn.Parameter]
) -> tuple[Tensor, list[WeightGroup]]:
    """Return the gradient of `hidden`, a leaf, and the groups for the weight half. `gradient` is None for a loss."""
    groups = _weight_groups(output, hidden, parameters)
    keep = [
        node.register_prehook(lambda passing, group=group, node=node: group.gradients.update({node: passing}))
        for group in groups
        for node in group.nodes
    ]
    try:
        with backward_half("input"):
            (wanted,) = torch.autograd.grad(output, hidden, gradient, retain_graph=True)
    finally:
        for handle in keep:
            handle.remove()
    return wanted, groups


def backward_weight(group: WeightGroup) -> None:
    """Add the gradients of the parameters in `group` to their `.grad`. Call once: it frees what the group kept."""
    edges = [
        (GradientEdge(node, index), passed)
        for node, passing in group.gradients.items()
        for index, passed in enumerate(passing)
        if passed is not None
    ]
    # A parameter shared by several layers is reached from one node through another, whose gradient is already whole.
    clamps = [
        node.register_prehook(lambda _, whole=passing: whole)
        for node, passing in group.gradients.items()
        if len(group.gradients) > 1
    ]
    group.nodes, group.gradients = set(), {}
    try:
        with backward_half("weight"):
            made = torch.autograd.grad(
                [edge for edge, _ in edges],
                [get_gradient_edge(parameter) for parameter in group.parameters],
                [passed for _, passed in edges],
                retain_graph=True,  # the branches of another group may lie between nodes of this one
            )
    finally:
        for handle in clamps:
            handle.remove()
    for parameter, values in zip(group.parameters, made, strict=True):
        if parameter.grad is None:
            parameter.grad = values
        else:
            parameter.grad += values


def _weight_groups(output: Tensor, hidden: Tensor, parameters: Iterable[nn.Parameter]) -> list[WeightGroup]:
    """Return the parameters that `output` depends on, in the order of `parameters`, as groups that share no node."""
    users = _users(get_gradient_edge(output).node)
    on_path = _dependents(get_gradient_edge(hidden).node, users, set())[0]
    groups: list[WeightGroup] = []
    for parameter in filter(lambda each: each.requires_grad, parameters):
        _, nodes = _dependents(get_gradient_edge(parameter).node, users, on_path)
        if not nodes:
            continue
        group = WeightGroup(nodes, [parameter])
        for other in [other for other in groups if not other.nodes.isdisjoint(group.nodes)]:
            groups.remove(other)
            group = WeightGroup(other.nodes | group.nodes, other.parameters + group.parameters)
        groups.append(group)
    return groups


def _users(root: Node) -> dict[Node, list[Node]]:
    """Return, for each node of the graph under `root`, the nodes whose backward passes it a gradient."""
    users: dict[Node, list[Node]] = defaultdict(list)
    waiting, seen = [root], {root}
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if following is not None:
                users[following].append(node)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
    return users


def _dependents(start: Node, users: dict[Node, list[Node]], until: set[Node]) -> tuple[set[Node], set[Node]]:
    """Return the nodes that lead to `start` without passing `until`, and the nodes of `until` where those paths end."""
    passed, ends, waiting = {start}, set(), [start]
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user in until:
                ends.add(user)
            elif user not in passed:
                passed.add(user)
                waiting.append(user)
    return passed, ends
