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
        t.dtype == torch.float32 and t.is_cpu and type(t) in (Tensor, nn.Parameter) and t.is_contiguous()
        for t in (*means, *rhos)
    )


def sample(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    eps: Sequence[Tensor] | None,
    center: float,
    *,
    around_mean: bool = True,
) -> tuple[list[Tensor], Tensor]:
    """Compute ``mean + softplus(rho) * eps`` of several tensors, and sums over all of them.

    Args:
        means: Means.
        rhos: Tensors whose softplus is the standard deviation.
        eps: Standard normals; without them, the standard deviations themselves.
        center: Number that the means are compared with.
        around_mean: Whether samples include the mean; without it they are ``softplus(rho) * eps``.

    Returns:
        The samples, and the sums of ``(mean - center)^2``, ``std^2`` and ``log(std)``, ``(3,)`` in float64;
        differentiable in means and ``rho``.
    """
    *thetas, sums = _Sample.apply((center, float(around_mean)), len(means), *means, *rhos, *(eps or ()))  # type: ignore[no-untyped-call]
    return thetas, sums


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: tuple[float, float], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        means, rhos, eps = (tensors[i : i + count] for i in range(0, 3 * count, count))
        thetas = [torch.empty_like(mean) for mean in means]
        stds = [torch.empty_like(mean) for mean in means] if eps else thetas
        sums = torch.empty(3, dtype=torch.float64, device="cpu")
        _call("sample", [means, rhos, eps, stds, thetas], numbers, sums)
        ctx.numbers, ctx.count = numbers, count
        ctx.save_for_backward(*stds, *tensors)
        return *thetas, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, ctx.count
        stds, means, rhos, eps = (saved[i : i + count] for i in range(0, 4 * count, count))
        of_means, of_rhos = ([torch.empty_like(mean) for mean in means] for _ in range(2))
        given = [grad.to_dense().contiguous() for grad in grads[:-1]]
        columns = [means, rhos, eps, stds, given, of_means, of_rhos]
        _call("sample_backward", columns, ctx.numbers, grads[-1].contiguous())
        return None, None, *of_means, *of_rhos, *[None] * len(eps)


def _call(name: str, columns: Sequence[Sequence[Tensor]], numbers: tuple[float, float], sums: Tensor) -> None:
    """Call a compiled function; a column without tensors has addresses of 0."""
    sizes = list(map(Tensor.numel, columns[0]))
    addresses = [list(map(Tensor.data_ptr, column)) or [0] * len(sizes) for column in columns]
    rows = np.array([sizes, *addresses], dtype=np.int64).T.copy()
    threads = 1 if sum(sizes) <= noise.ALONE else torch.get_num_threads()
    getattr(_library(), name)(len(sizes), rows.ctypes.data, *numbers, sums.data_ptr(), threads)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, or ``None`` if it cannot be compiled; :mod:`bayesadam.noise` has then warned about it."""
    try:
        library = native.load(native.read("sample.cpp")) if native.has_compiler() else None
    except native.CompilationError:
        return None
    if library is not None:
        for function in (library.sample, library.sample_backward):
            numbers = [ctypes.c_float, ctypes.c_float]
            function.argtypes = [ctypes.c_int64, ctypes.c_void_p, *numbers, ctypes.c_void_p, ctypes.c_int]
    return library
