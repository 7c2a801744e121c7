"""Sampling and updating as compiled kernels: one pass over memory each, with the noise made on the way.

An accelerator only: its numbers are those of the eager code up to rounding, and where no kernel fits (less than two
tiles of noise, other dtypes or layouts, a shard that begins inside a tile, no compiler) the eager code does the work.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.optim.blocks import Block
from bayesadam.optim.rule import initial_counters

Hyper = Mapping[str, Any]
Tensors = dict[str, Tensor]

_STATICS = ("rescale_lr", "hessian", "correction")
_PER_WEIGHT = ("prior_mean", "prior_precision", "initial_precision")
_NUMBERS = (
    *("lr", "num_data", "temperature", "prior_mean", "prior_precision", "initial_precision", "clip_radius"),
    *initial_counters(),
)
"""What rules are told: the groups have more, which schedulers add to."""
_MASK = 2**32 - 1
_numbers = itertools.count()


@cache
def available() -> bool:
    """Whether there is a compiler; warns once if there is none."""
    if noise.has_compiler():
        return True
    warnings.warn("compile=True needs a C++ compiler, found none: going on without it", RuntimeWarning, stacklevel=2)
    return False


def fits(block: Block, tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels can work on a block of some tensors: two tiles or more of contiguous float32."""
    return (
        block.flat
        and block.offset[0] % noise.TILE == 0
        and block.shape[0] >= 2 * noise.TILE
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)
    )


class Draw:
    """Where in the stream of noise a block of one sample lies."""

    def __init__(self, group: Mapping[str, Any], index: int, block: Block, sample: int) -> None:
        pair = sample // 2 if group["antithetic"] else sample
        seed = group["seed"]
        self.words = [block.offset[0] // noise.TILE, seed & _MASK, seed >> 32, group["noise_step"], pair, index]
        self.sign = -1.0 if group["antithetic"] and sample % 2 else 1.0


def sample_(weights: Tensor, rule: Any, views: Tensors, hp: Hyper, draw: Draw, *, adopt: bool) -> None:
    """``weights = mean + sigma * eps`` on a block that fits; ``adopt``: first ``mean = weights``."""
    names, numbers, tensors, statics = _split(hp)
    kernel = _sampling(rule, names, statics, adopt)
    numbers = [*numbers, draw.sign]
    kernel(
        weights,
        views,
        tensors,
        torch.tensor(numbers, dtype=torch.float64, device=weights.device),
        torch.tensor(draw.words, device=weights.device),
    )


def update_(
    weights: Tensor,
    rule: Any,
    views: Tensors,
    grad: Tensor,
    scale: float,
    curvature: tuple[Tensor | None, float] | None,
    before: Hyper,
    after: Hyper,
    draw: Draw | None,
    *,
    holds_mean: bool,
) -> None:
    """One step of the rule on a block that fits.

    Args:
        weights: Follow the mean if they hold it; else they are left alone.
        rule: Of the method.
        views: Of the state.
        grad: As it stands in ``p.grad``; not changed.
        scale: Makes the gradient of the mean loss of it.
        curvature: What was kept, or ``None`` in it if there is none, and what to multiply it by; ``None``: the rule
            computes it.
        before: Hyper-parameters with the counters before this step.
        after: The same after it.
        draw: The noise that the curvature is read off, if the rule needs it.
        holds_mean: Whether the weights hold the mean, which then is authoritative.
    """
    names, first, tensors, statics = _split(before)
    _, second, _, _ = _split(after)
    kept, factor = (None, 1.0) if curvature is None else curvature
    kernel = _updating(rule, names, statics, holds_mean, curvature is not None)
    sign = 1.0 if draw is None else draw.sign
    kernel(
        weights,
        views,
        tensors,
        grad,
        kept,
        torch.tensor([*first, *second, scale, factor, sign], dtype=torch.float64, device=grad.device),
        None if draw is None else torch.tensor(draw.words, device=grad.device),
    )


@cache
def _sampling(rule: Any, names: tuple[str, ...], statics: tuple[Any, ...], adopt: bool) -> Callable[..., None]:
    def sample(weights: Tensor, views: Tensors, tensors: Tensors, numbers: Tensor, words: Tensor) -> None:
        *values, sign = numbers.unbind()
        mean = views["mean"]
        if adopt:
            mean.copy_(weights)
        sigma = rule.precision(views, _join(names, values, tensors, statics)).rsqrt_()
        weights.copy_(torch.addcmul(mean, sigma, normals(weights, words) * sign.to(sigma.dtype)))

    return compile_kernel(sample)


@cache
def _updating(
    rule: Any, names: tuple[str, ...], statics: tuple[Any, ...], holds_mean: bool, given: bool
) -> Callable[..., None]:
    def update(
        weights: Tensor,
        views: Tensors,
        tensors: Tensors,
        grad: Tensor,
        kept: Tensor | None,
        numbers: Tensor,
        words: Tensor | None,
    ) -> None:
        values = numbers.unbind()
        count = len(names)
        before, after = (_join(names, part, tensors, statics) for part in (values[:count], values[count : 2 * count]))
        scale, factor, sign = values[2 * count :]
        mean = views["mean"]
        if holds_mean:
            mean.copy_(weights)
        value = grad * scale.to(grad.dtype)
        if given:
            curvature = None if kept is None else kept * factor.to(kept.dtype)
        else:
            eps = None if words is None else normals(grad, words) * sign.to(grad.dtype)
            curvature = rule.curvature(value, eps, views, before)
        rule.update_(mean, views, value, curvature, after)
        if holds_mean:
            weights.copy_(mean)

    return compile_kernel(update)


def compile_kernel(function: Any) -> Callable[..., None]:
    """Compile a kernel on its own: kernels with the same code would share one limit on how often it is compiled."""
    function.__code__ = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    kernel: Any = torch.compile(function, fullgraph=True)
    mark: Any = torch._dynamo.maybe_mark_dynamic

    def call(weights: Tensor, *rest: Any) -> None:
        for part in (weights, *rest):
            for tensor in part.values() if isinstance(part, dict) else (part,):
                if isinstance(tensor, Tensor) and len(tensor) >= 2 * noise.TILE:
                    mark(tensor, 0)
        kernel(weights, *rest)

    return call


def normals(like: Tensor, words: Tensor) -> Tensor:
    """The standard normals of a block, as :func:`bayesadam.noise.normal` draws them."""
    tile, low, high, step, sample, index = words.unbind()
    tiles = -(-len(like) // noise.TILE)
    out = torch.empty(tiles * noise.TILE, dtype=like.dtype, device=like.device)
    key = (low, high, step, sample, index, noise.TRAINING)
    noise.fill_(out, tile * noise.TILE, key, noise.Scratch())
    return out[: len(like)]


def _split(hp: Hyper) -> tuple[tuple[str, ...], list[float], Tensors, tuple[Any, ...]]:
    """Names of the numbers, the numbers, what is a tensor with a value for every weight, and what is neither."""
    numbers = {"beta1": hp["betas"][0], "beta2": hp["betas"][1]}
    tensors = {}
    for name, value in hp.items():
        if isinstance(value, Tensor):
            if name in _PER_WEIGHT:
                tensors[name] = value
        elif name in _NUMBERS:
            numbers[name] = value
    statics = tuple((name, hp[name]) for name in _STATICS if name in hp)
    return tuple(numbers), list(map(float, numbers.values())), tensors, statics


def _join(names: Sequence[str], values: Sequence[Tensor], tensors: Tensors, statics: Sequence[Any]) -> Hyper:
    """The inverse of :func:`_split`."""
    hp: dict[str, Any] = {**dict(zip(names, values, strict=True)), **tensors, **dict(statics)}
    hp["betas"] = (hp.pop("beta1"), hp.pop("beta2"))
    return hp
