"""Networks whose weights are sharded over processes: gathering whole weights, and writing samples shard by shard."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.modules.sharding import gathers_weights, is_sharded, local, own_part

Write = Callable[[Mapping[str, Tensor], int | None], None]
_WHOLE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Modules whose weights are whole at the moment, inside an ``unsharded`` block."""


@contextmanager
def unsharded(sharded: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which every weight of modules that went through ``fully_shard`` is whole on this rank.

    Inside, the modules compute like ones that were never sharded, also where derivatives are taken, and forward passes
    gather nothing. Values written to their weights inside are lost afterwards. All ranks must enter the block. Blocks
    may be nested.
    """
    modules: list[Any] = [module for module in sharded if module not in _WHOLE]
    settings = [(owner, name, getattr(owner, name)) for module in modules for owner, name in _settings(module)]
    try:
        _WHOLE.update(modules)
        for module in modules:
            module.reshard()  # weights gathered by an earlier forward pass may be outdated
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
        yield
    finally:
        for owner, name, value in settings:
            setattr(owner, name, value)
        for module in modules:
            module.reshard()
        _WHOLE.difference_update(modules)


def spread(model: nn.Module) -> None:
    """Make a model hold the shards that an optimiser knows, instead of whole weights from an earlier forward pass."""
    for module in model.modules():
        if _is_fsdp(module) and module not in _WHOLE:
            module.reshard()  # type: ignore[operator]


def writing_parts(write: Write, targets: Mapping[str, Tensor]) -> Write:
    """Wrap a posterior's writer for targets that may be sharded: each rank makes the sample and keeps its own shard.

    Args:
        write: Function that writes full tensors.
        targets: Tensors that it will be asked to write to.
    """
    sharded = {name for name, target in targets.items() if is_sharded(target)}
    if not sharded:
        return write

    @torch.no_grad()
    def put(targets: Mapping[str, Tensor], number: int | None) -> None:
        whole = {
            name: local(target).new_empty(target.shape) if name in sharded else target
            for name, target in targets.items()
        }
        write(whole, number)
        for name in sharded:
            local(targets[name]).copy_(own_part(targets[name], whole[name]))

    return put


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module, without the subclass that ``fully_shard`` makes of it."""
    kind = type(module)
    return next(base for base in kind.__mro__[1:] if issubclass(base, nn.Module)) if _is_fsdp(module) else kind


def has_hooks(module: nn.Module, *allowed: type) -> bool:
    """Whether a module has forward hooks other than the allowed kinds, and those that gather whole weights."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not all(isinstance(hook, allowed) or gathers_weights(module, hook) for hook in hooks)


def _is_fsdp(module: nn.Module) -> bool:
    return hasattr(module, "_get_fsdp_state")


def _settings(module: Any) -> list[tuple[Any, str]]:
    """Places where ``fully_shard`` keeps the setting when a module frees whole weights; its setters cannot read it."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    places = [(state, "_auto_reshard_after_forward")]
    for group in groups:
        if group is not None:
            places += [(group, "post_forward_mesh_info"), (group, "reshard_after_backward")]
    return [(owner, name) for owner, name in places if hasattr(owner, name)]
