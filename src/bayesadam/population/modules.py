"""Modules of one architecture: making, comparing and describing them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import torch
from torch import Tensor, nn

from bayesadam.checks import made_by
from bayesadam.functional.generators import GENERATORS
from bayesadam.modules.calls import tensors


def initialize(make_model: Callable[[], nn.Module], *, seeds: Iterable[int]) -> list[nn.Module]:
    """Make one network for each seed, with weights drawn under it; the state of torch's generator is restored.

    Raises:
        ValueError: ``make_model`` is no function that returns a network.
    """
    models = []
    with GENERATORS, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(made_by(make_model))
    return models


def signature(module: nn.Module) -> list[object]:
    """A description that is equal for two modules of one architecture, whatever the values of their tensors."""
    kinds: list[object] = [
        (name, f"{type(part).__module__}.{type(part).__qualname__}", part.extra_repr())
        for name, part in module.named_modules()
    ]
    return kinds + [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in tensors(module)]


def differing_constants(modules: Sequence[nn.Module], trained: Container[str]) -> dict[str, Tensor]:
    """Tensors that are not trained and differ between the modules, by name, each ``(P, ...)``."""
    by_name = [dict(tensors(module)) for module in modules]
    stacks = {n: [named[n].detach() for named in by_name] for n in by_name[0] if n not in trained}
    return {n: torch.stack(values) for n, values in stacks.items() if not all(v.equal(values[0]) for v in values)}
