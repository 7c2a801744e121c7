"""A sample of all weights, and sums for the divergence from a Gaussian, in one compiled pass over memory.

It is only an accelerator: the numbers are those of :mod:`bayesadam.functional.reparameterized` and
:mod:`bayesadam.functional.kl` up to rounding, and these modules are used where it cannot be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bayesadam import native, noise


def fits(means: Sequence[Tensor], rhos: Sequence[Tensor]) -> bool:
    """Whether all tensors are contiguous float32 on the CPU, and there is a compiler."""
    return _library() is not None and all(
        t.dtype == torch.float32 and t.device.type == "cpu" and type(t) in (Tensor, nn.Parameter) and t.is_contiguous()
        for t in (*means, *rhos)
    )


def sample(
    means: Sequence[Tensor], rhos: Sequence[Tensor], eps: Sequence[Tensor], center: float, *, around_mean: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Compute ``mean + softplus(rho) * eps`` of several tensors, and sums over all of them.

    Args:
        means: Means.
        rhos: Tensors whose softplus is the standard deviation.
        eps: Standard normals.
        center: Number that the means are compared with.
        around_mean: Whether samples include the mean; without it they are ``softplus(rho) * eps``.

    Returns:
        The samples, and the sums of ``(mean - center)^2``, ``std^2`` and ``log(std)``, ``(3,)`` in float64;
        differentiable in means and ``rho``.
    """
    *thetas, sums = _Sample.apply((center, float(around_mean)), len(means), *means, *rhos, *eps)  # type: ignore[no-untyped-call]
    return thetas, sums


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: tuple[float, float], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        means = tensors[:count]
        stds, thetas = ([torch.empty_like(mean) for mean in means] for _ in range(2))
        sums = torch.empty(3, dtype=torch.float64, device="cpu")
        _call("sample", [means, tensors[count : 2 * count], tensors[2 * count :], stds, thetas], numbers, sums)
        ctx.numbers, ctx.count = numbers, count
        ctx.save_for_backward(*tensors, *stds)
        return *thetas, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count = ctx.count
        tensors = [ctx.saved_tensors[i : i + count] for i in range(0, 4 * count, count)]
        of_means, of_rhos = ([torch.empty_like(mean) for mean in tensors[0]] for _ in range(2))
        given = [grad.to_dense().contiguous() for grad in grads[:-1]]
        _call("sample_backward", [*tensors, given, of_means, of_rhos], ctx.numbers, grads[-1].contiguous())
        return None, None, *of_means, *of_rhos, *[None] * count


def _call(name: str, columns: Sequence[Sequence[Tensor]], numbers: tuple[float, float], sums: Tensor) -> None:
    sizes = [tensor.numel() for tensor in columns[0]]
    rows = np.array([sizes, *([t.data_ptr() for t in column] for column in columns)], dtype=np.int64).T.copy()
    threads = 1 if sum(sizes) <= noise.ALONE else torch.get_num_threads()
    getattr(_library(), name)(
        ctypes.c_int64(len(sizes)),
        ctypes.c_void_p(rows.ctypes.data),
        *map(ctypes.c_float, numbers),
        ctypes.c_void_p(sums.data_ptr()),
        ctypes.c_int(threads),
    )


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, or ``None`` if it cannot be compiled; :mod:`bayesadam.noise` has then warned about it."""
    try:
        return native.load(native.read("sample.cpp")) if native.has_compiler() else None
    except native.CompilationError:
        return None
