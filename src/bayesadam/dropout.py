"""MC dropout: a network trained with dropout, as a distribution over networks with units dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from bayesadam import noise
from bayesadam.functional.curvature import wide
from bayesadam.posterior import NetworkDistribution

Dropout: TypeAlias = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d

_UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}
"""Number of axes that these take for a single example; :class:`torch.nn.Dropout2d` never does."""
_FIRST_STEP = 2
"""Steps 0 and 1 of the noise of posteriors are the weights' and the low-rank factors'."""


class MCDropout(NetworkDistribution):
    """Bernoulli dropout that stays on when predicting (Gal and Ghahramani 2016, "Dropout as a Bayesian approximation").

    A sample is one network: a draw of the weights in which the columns that belong to dropped units are zero
    (section 3 there). So a unit is dropped for all data points, or for none, and what a data point gets does not depend
    on the batch it is in. This is the distribution that the paper defines; what is usually done instead, a mask of its
    own for every data point, has the same predictive of a single data point, but is not the same network for two of
    them: a joint likelihood, or a function to draw, cannot be had from it.

    The dropout is that of the modules ``nn.Dropout``, ``nn.Dropout1d``, ``nn.Dropout2d`` and ``nn.Dropout3d`` with
    ``p > 0``. A unit is an element of what such a module gets without the first axis, which are the data points; for
    the last three it is a channel. What is left is divided by ``1 - p``. A module that is called several times in one
    pass drops other units each time. Masks are the same for sequences of different lengths as far as both go, if the
    positions are the second axis.

    The mean network, ``method="mean"`` of ``predict``, has no dropout: the paper's "weight averaging".

    Dropout that is not one of these modules (``functional.dropout``, ``dropout_p`` of an attention, stochastic depth)
    cannot be seen: it is what the model's mode makes it, off when ``predict`` runs it. The masks of a pass are counted
    from the beginning of the model's ``forward``; to call parts of a model instead, call ``put`` before each.

    Args:
        model: With dropout. Only the names of its dropout modules are kept: weights stay the model's own.
        rate: Replaces every ``p`` that is positive, in (0, 1); default: as they are.

    Raises:
        ValueError: A rate out of range; a model without such a module, or with another kind of dropout: alpha dropout,
            or that inside ``nn.MultiheadAttention``, ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``.
    """

    def __init__(self, model: nn.Module, *, rate: float | None = None) -> None:
        if rate is not None and not 0 < rate < 1:
            raise ValueError(f"rate must be in (0, 1), got {rate!r}")
        self.rate = rate
        self.names = tuple(_dropouts(model))

    def __repr__(self) -> str:
        return f"MCDropout({len(self.names)} modules{'' if self.rate is None else f', rate={self.rate!r}'})"

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """See the base class. The model's weights are left alone; inside, its dropout modules are in eval mode.

        Raises:
            ValueError: Another model than that of the constructor, by the names of its dropout modules.
            RuntimeError: In a pass of the model: no dropout module is called, or one is in training mode.
        """
        modules = _dropouts(model)
        if tuple(modules) != self.names:
            raise ValueError(f"model must have the dropout modules {list(self.names)}, got {list(modules)}")
        masks = _Masks(seed)
        with ExitStack() as stack:
            if any(map(_is_compiled, model.modules())):  # what is compiled would not see the hooks
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_in_eval_mode(list(modules.values())))
            stack.callback(model.register_forward_pre_hook(masks.begin).remove)
            for index, module in enumerate(modules.values()):
                drop = partial(masks.drop, index, module.p if self.rate is None else self.rate)
                stack.callback(module.register_forward_hook(drop).remove)
            stack.callback(model.register_forward_hook(masks.end).remove)
            yield masks.put


class _Masks:
    """The masks of one sample, and where in a pass the model is."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.number: int | None = None
        self.calls: dict[int, int] = {}
        self.masks: dict[tuple[Any, ...], Tensor] = {}
        self.scratch = noise.Scratch()

    def put(self, number: int | None) -> None:
        if number != self.number:
            self.masks.clear()
        self.number = number
        self.calls.clear()

    def begin(self, *_: object) -> None:
        self.calls.clear()

    def end(self, *_: object) -> None:
        if not self.calls:
            raise RuntimeError("the model must call a dropout module in a forward pass, got a pass without any")

    def drop(self, index: int, rate: float, module: Dropout, _: tuple[Any, ...], output: Tensor) -> Tensor:
        """In eval mode the output is the input; what is returned replaces it."""
        if module.training:
            raise RuntimeError("the dropout modules must stay in eval mode while masks are drawn, got training mode")
        call = self.calls.get(index, 0)
        self.calls[index] = call + 1
        if self.number is None:
            return output
        mask = self.mask(self.number, (index, call), rate, _units(module, output), output)
        return output.mul_(mask) if module.inplace else (output * mask).to(output.dtype)

    def mask(self, number: int, place: tuple[int, int], rate: float, units: torch.Size, like: Tensor) -> Tensor:
        """0 or ``1 / (1 - rate)`` for every unit, at least in float32: bfloat16 would bias that number."""
        dtype = wide(like.dtype)
        key = (place, units, dtype, like.device)
        if key not in self.masks:
            eps = self.normals(number, place, units.numel(), like.device)
            scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
            self.masks[key] = (eps >= _quantile(rate)).to(dtype).mul_(scale).view(units)
        return self.masks[key]

    def normals(self, number: int, place: tuple[int, int], count: int, device: torch.device) -> Tensor:
        """The first so many elements of the draw that belongs to a place: of whole tiles, so that a shorter mask is the
        beginning of a longer one.
        """
        index, call = place
        return noise.normal(
            self.seed,
            _FIRST_STEP + call,
            number,
            index,
            (count,),
            stream=noise.POSTERIOR,
            offset=(0,),
            full_shape=(max(count, noise.TILE),),
            device=device,
            scratch=self.scratch,
        )


@cache
def _quantile(rate: float) -> float:
    return float(torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)))


def _units(module: Dropout, value: Tensor) -> torch.Size:
    """Shape of a mask, which broadcasts against the value."""
    if isinstance(module, nn.Dropout):
        return value.shape[1:]
    axis = 0 if value.ndim == _UNBATCHED.get(type(module)) else 1
    return torch.Size([value.shape[axis], *[1] * (value.ndim - axis - 1)])


def _dropouts(model: nn.Module) -> dict[str, Dropout]:
    """The modules that drop units, by name."""
    found: dict[str, Dropout] = {}
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            if module.p > 0:
                found[name] = module
        elif _drops_otherwise(module):
            raise ValueError(
                "the model's dropout must be in modules nn.Dropout, nn.Dropout1d, nn.Dropout2d or nn.Dropout3d, "
                f"got {type(module).__name__} with dropout as {name!r}"
            )
    if not found:
        raise ValueError("the model must have a dropout module with p > 0, got none")
    return found


def _drops_otherwise(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


@contextmanager
def _in_eval_mode(modules: list[Dropout]) -> Iterator[None]:
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
