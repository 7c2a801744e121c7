"""Process groups over which gradients are averaged, and means over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bayesadam.functional.curvature import wide
from bayesadam.modules.sharding import is_sharded


def groups(model: nn.Module, parameter: Tensor) -> list[Any]:
    """The process groups over which gradients are averaged, one after the other; none in a single process."""
    if is_sharded(parameter):
        mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
        return [mesh.get_group(axis) for axis in range(mesh.ndim)]
    return [model.process_group] if isinstance(model, DistributedDataParallel) else []


def mean(value: Tensor | None, parameter: Tensor, over: list[Any]) -> Tensor | None:
    """The mean over the ranks; None if no rank has a value. Ranks without one count as zero."""
    import torch.distributed as dist

    size = parameter.numel()
    message = torch.zeros(
        size + 1, dtype=wide(parameter.dtype) if value is None else value.dtype, device=parameter.device
    )
    if value is not None:
        message[:size].copy_(value.reshape(-1))
        message[size] = 1
    ranks = 1
    for group in over:
        dist.all_reduce(message, group=group)
        ranks *= dist.get_world_size(group)
    if message[size] == 0:
        return None
    return message[:size].div_(ranks).view(parameter.shape)
