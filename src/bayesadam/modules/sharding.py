"""Processes that train together, and tensors that are sharded over them (``DTensor``): local parts and whole
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)
"""Classes of tensors that are not shards, which need no further test."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a ``DTensor``, without importing ``torch.distributed`` for those that are not."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def gathers_weights(module: nn.Module, hook: Any) -> bool:
    """Whether a forward hook of a module is one with which ``fully_shard`` gathers or frees its whole weights."""
    return hasattr(module, "_get_fsdp_state") and getattr(hook, "__self__", None) is module._get_fsdp_state()  # type: ignore[operator]


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank, sharing its storage; it is to be used without gradients."""
    if type(tensor) in _PLAIN or not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def place(parameter: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the full tensor, and the position at which the local part begins in it."""
    if is_sharded(parameter):
        return tuple(parameter.shape), _shard_offset(parameter)
    return tuple(parameter.shape), (0,) * parameter.ndim


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (a collective call), or the tensor itself."""
    if not is_sharded(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """``value``, a full tensor, on the parameter's device and with its sharding (a collective call)."""
    value = value.to(parameter.device)
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]


def own_part(parameter: Tensor, value: Tensor) -> Tensor:
    """The part of ``value``, a full tensor that all ranks have, that matches this rank's part of a parameter."""
    _, start = place(parameter)
    shape = local(parameter).shape
    return value[tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))]


def rank_and_size() -> tuple[int, int]:
    """Number of this process, and number of processes that train together; 0 and 1 without ``torch.distributed``."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over the ranks, in one collective call for each dtype and device."""
    import torch.distributed as dist

    _, size = rank_and_size()
    if size == 1:
        return
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in alike.values():
        message = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(message)
        message.div_(size)
        parts = torch.split(message, [tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _shard_offset(parameter: Tensor) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    offset: tuple[int, ...] = tuple(
        compute_local_shape_and_global_offset(
            parameter.shape,
            parameter.device_mesh,  # type: ignore[attr-defined]
            parameter.placements,  # type: ignore[attr-defined]
        )[1]
    )
    return offset
