"""What the modules of several members have in common."""

from __future__ import annotations

from torch import Tensor, nn


def tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def signature(module: nn.Module) -> list[object]:
    """Equal for two modules of one architecture, which may differ in the values of their tensors."""
    kinds: list[object] = [
        (name, f"{type(part).__module__}.{type(part).__qualname__}", part.extra_repr())
        for name, part in module.named_modules()
    ]
    return kinds + [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in tensors(module)]
