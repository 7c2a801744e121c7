"""What the optimiser keeps for one parameter, and what it tells the rule about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesadam.optim.blocks import Block, blocks, is_sharded, local
from bayesadam.optim.rule import Rule, initial_counters, maximum

COUNTERS = tuple(initial_counters())


def new_state(rule: Rule, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """Counters, the mean (the parameter's value, at least float32), and the rule's tensors, like the parameter."""
    dtype = torch.float32 if parameter.dtype in (torch.float16, torch.bfloat16) else parameter.dtype
    mean = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    local(mean).copy_(local(parameter))
    counters = initial_counters()
    return {**counters, "mean": mean, **rule.init(mean, hyper(group, counters, {}))}


def hyper(group: Mapping[str, Any], counters: Mapping[str, Any], views: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the rule is given: the group's values, the counters, and per-weight values where the state has them."""
    hp = {**group, **{name: counters[name] for name in COUNTERS}}
    hp["lr"] = float(group["lr"])
    hp["prior_mean"] = views.get("prior_mean", 0.0)
    if "prior_precision" in group:
        hp["prior_precision"] = views.get("prior_precision", group["prior_precision"])
        if group["initial_precision"] is None:
            hp["initial_precision"] = maximum(hp["prior_precision"], float(group["num_data"]))
    return hp


def tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The local tensors of a parameter's state by name; they share storage with it."""
    return {name: local(value) for name, value in state.items() if isinstance(value, Tensor)}


def walk(
    parameter: Tensor, state: Mapping[str, Any], *others: Tensor, tiled: bool = False
) -> Iterator[tuple[Block, dict[str, Tensor]]]:
    """The blocks of a parameter with the views of its state's tensors; ``others`` are local tensors that go along."""
    tensors = tensors_of(state)
    for block in blocks(parameter, [*tensors.values(), *others], tiled):
        yield block, {name: block.of(tensor) for name, tensor in tensors.items()}


def follow(mean: Tensor, weights: Tensor) -> None:
    """The weights are authoritative; a wider mean keeps its low bits where it still rounds to the weight."""
    if mean.dtype == weights.dtype:
        mean.copy_(weights)
    else:
        mean.copy_(torch.where(mean.to(weights.dtype) == weights, mean, weights.to(mean.dtype)))


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (a collective call), or the tensor itself."""
    if not is_sharded(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """``value``, a full tensor, on the parameter's device and with its sharding."""
    value = value.to(parameter.device)
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]
