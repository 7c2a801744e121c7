"""MC dropout: a network trained with dropout, as a distribution over networks with dropped units."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesadam import noise
from bayesadam.checks import check, check_model
from bayesadam.functional.curvature import wide
from bayesadam.functional.generators import seeded
from bayesadam.modules.calls import computes_as
from bayesadam.modules.exclusive import exclusively
from bayesadam.modules.recomputation import recomputed_by
from bayesadam.posterior import NetworkDistribution

Dropout: TypeAlias = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d

_UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}
"""Number of axes that these modules take for a single example; :class:`torch.nn.Dropout2d` always takes a batch."""
_FIRST_STEP = 2
"""First step number of the noise of masks; a posterior's weights and low-rank factors use steps 0 and 1."""
_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models of which :func:`_check` knows that nothing else is random."""


class MCDropout(NetworkDistribution):
    """Bernoulli dropout that stays on when predicting (Gal and Ghahramani 2016, "Dropout as a Bayesian approximation").

    A sample is one network: a draw of the weights in which the columns that belong to dropped units are zero (section 3
    of the paper). A unit is therefore dropped for all data points or for none, and the prediction for a data point does
    not depend on the rest of its batch. This is the distribution that the paper defines. Most implementations draw a
    new mask for every data point instead. The predictive distribution of a single data point is then the same, but two
    data points do not see the same network, so there is no joint likelihood and no function to plot.

    Dropout is that of the modules ``nn.Dropout``, ``nn.Dropout1d``, ``nn.Dropout2d`` and ``nn.Dropout3d`` with ``p >
    0``. A unit is an element of the module's input without the first axis, which counts the data points; for the last
    three modules it is a channel. Units that are kept are divided by ``1 - p``. A module that is called several times
    in one pass drops other units each time. If the positions of a sequence are the second axis, the masks of sequences
    of different lengths agree as far as both go.

    The mean network, ``method="mean"`` of ``predict``, has no dropout; the paper calls this "weight averaging".

    A model that is random in training in other ways (``functional.dropout``, alpha dropout, the dropout inside
    ``nn.MultiheadAttention`` or ``nn.LSTM``, stochastic depth) is refused, since this would be off in ``predict``. To
    find out, the first sample is preceded by two passes in training mode with the same masks, with which the outputs
    must agree. The masks of a pass are counted from the beginning of the model's ``forward``; if you call parts of a
    model instead, call ``put`` before each of them.

    Args:
        model: Network with dropout. Only the names of its dropout modules are kept; the weights stay in the model.
        rate: Dropout rate in (0, 1) that replaces every positive ``p``; by default the modules' own.

    Raises:
        ValueError: The rate is out of range, or the model has no such module.
    """

    def __init__(self, model: nn.Module, *, rate: float | None = None) -> None:
        if rate is not None:
            check("rate", rate, "in (0, 1)", lambda v: 0 < v < 1)
        self.rate = rate
        self.names = tuple(_dropouts(model))

    def __repr__(self) -> str:
        return f"MCDropout({len(self.names)} modules{'' if self.rate is None else f', rate={self.rate!r}'})"

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Return a context as in the base class. The weights are not changed; inside, dropout modules are in evaluation
        mode.

        Raises:
            ValueError: The model has other dropout modules, by name, than that of the constructor.
            RuntimeError: Raised in a pass of the model if no dropout module is called, if one is in training mode, or
                if other modules are random in training; and in a backward pass through activation checkpointing.
        """
        modules = _dropouts(model)
        if tuple(modules) != self.names:
            raise ValueError(f"model must have the dropout modules {list(self.names)}, got {list(modules)}")
        masks = _Masks(seed)
        with ExitStack() as stack:
            stack.enter_context(exclusively(model))
            if any(map(_is_compiled, model.modules())):  # what is compiled would not see the hooks
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_with("training", False, list(modules.values())))
            encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]
            stack.enter_context(_with("use_nested_tensor", False, encoders))  # whose tensors have no shape
            if model not in _CHECKED:  # before the calls of this pass are counted
                check = partial(_check, list(modules.values()))
                stack.callback(model.register_forward_pre_hook(check, with_kwargs=True).remove)
            stack.callback(model.register_forward_pre_hook(masks.begin).remove)
            for index, module in enumerate(modules.values()):
                drop = partial(masks.drop, index, module.p if self.rate is None else self.rate)
                stack.callback(module.register_forward_hook(drop).remove)
            stack.callback(model.register_forward_hook(masks.end).remove)
            stack.enter_context(recomputed_by(_refuse_to_run_again))
            yield masks.put


def _refuse_to_run_again(*_: object) -> None:
    raise RuntimeError(
        "a backward pass through a sample of MCDropout must not run a part of the model again, where its masks are not "
        "known, got activation checkpointing: switch it off"
    )


class _Masks:
    """The masks of one sample, and the position within a pass of the model."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.number: int | None = None
        self.calls: dict[int, int] = {}
        self.masks: dict[tuple[Any, ...], Tensor] = {}

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
        """Replace the output, which in evaluation mode is the input, by the masked one."""
        if module.training:
            raise RuntimeError("the dropout modules must stay in eval mode while masks are drawn, got training mode")
        call = self.calls.get(index, 0)
        self.calls[index] = call + 1
        if self.number is None:
            return output
        mask = self.mask(self.number, (index, call), rate, _units(module, output), output)
        return output.mul_(mask) if module.inplace else (output * mask).to(output.dtype)

    def mask(self, number: int, place: tuple[int, int], rate: float, units: torch.Size, like: Tensor) -> Tensor:
        """Mask with 0 or ``1 / (1 - rate)`` for every unit, in float32 or wider, since bfloat16 would bias that
        number.
        """
        dtype = wide(like.dtype)
        key = (place, units, dtype, like.device)
        if key not in self.masks:
            eps = self.normals(number, place, units.numel(), like.device)
            scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
            self.masks[key] = (eps >= _quantile(rate)).to(dtype).mul_(scale).view(units)
        return self.masks[key]

    def normals(self, number: int, place: tuple[int, int], count: int, device: torch.device) -> Tensor:
        """The first ``count`` elements of the draw that belongs to a place.

        Whole tiles are drawn, so that a shorter mask is the beginning of a longer one.
        """
        index, call = place
        return noise.fill_runs(
            torch.empty(count, dtype=torch.float32, device=device),
            [(index, 0, count, max(count, noise.TILE))],
            seed=self.seed,
            step=_FIRST_STEP + call,
            sample=number,
            stream=noise.POSTERIOR,
        )


@torch.no_grad()
def _check(modules: list[Dropout], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check, before the first pass of a model, that its dropout modules are all that is random in training."""
    if model in _CHECKED:  # also in the passes below
        return
    _CHECKED.add(model)
    # Modules with buffers, such as batch norm, would change them.
    others = [m for m in model.modules() if m not in modules and not m._buffers]
    device = next(model.parameters(), torch.empty(0)).device
    try:
        with _with("training", True, others), seeded(0, device):
            given = [tree_map_only(Tensor, Tensor.clone, (args, kwargs)) for _ in range(2)]
            first, second = (tree_leaves(model(*args, **kwargs)) for args, kwargs in given)
    except Exception:  # a model that needs targets in training, or an error that the pass itself will raise
        return
    for one, other in zip(first, second, strict=True):
        if isinstance(one, Tensor) and not torch.allclose(one, other, rtol=0.01, atol=1e-6, equal_nan=True):
            _CHECKED.discard(model)
            raise RuntimeError(
                "the model must be random in training by its modules nn.Dropout only, got two outputs that differ "
                "with the same masks (functional.dropout, or the dropout of a recurrent or attention layer, say)"
            )


@cache
def _quantile(rate: float) -> float:
    return float(torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)))


def _units(module: Dropout, value: Tensor) -> torch.Size:
    """Shape of a mask, which broadcasts against the value."""
    if isinstance(module, nn.Dropout):
        return value.shape[1:]
    alone = any(value.ndim == axes for kind, axes in _UNBATCHED.items() if isinstance(module, kind))
    axis = 0 if alone else 1
    return torch.Size([value.shape[axis], *[1] * (value.ndim - axis - 1)])


def _dropouts(model: nn.Module) -> dict[str, Dropout]:
    """The modules that drop units, by name."""
    check_model(model)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Dropout) and module.p > 0}
    if not layers:
        raise ValueError("the model must have a dropout module with p > 0, got none")
    for name, module in layers.items():
        if not any(computes_as(module, kind) for kind in get_args(Dropout)):
            raise ValueError(f"dropout modules must compute as PyTorch's, got {type(module).__name__} {name!r}")
    return layers


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


@contextmanager
def _with(name: str, value: object, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which modules have another value of an attribute."""
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, value)
        yield
    finally:
        for module, earlier in zip(modules, before, strict=True):
            setattr(module, name, earlier)
