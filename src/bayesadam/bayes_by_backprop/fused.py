"""A sample of several parameters, and the sums for its density and for the divergence from a Gaussian.

On a CPU with a compiler it takes one compiled pass over memory, and its gradients take another; elsewhere PyTorch's
operations give the same numbers up to rounding.
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
from bayesadam.functional.reparameterized import softplus
from bayesadam.native.memory import placed


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
        rhos: Tensors whose softplus is the standard deviation, of the means' dtype or a wider one.
        eps: Standard normals. Without them the standard deviations take their place, which gives the variances if the
            mean is left out.
        center: Number that the means are compared with.
        around_mean: Whether samples include the mean; without it they are ``softplus(rho) * eps``.

    Returns:
        The samples, of the means' dtype if they include the mean, else of that of ``rho``; and the sums of
        ``(mean - center)^2``, ``std^2`` and ``log(std)``, ``(3,)`` in float64. All are differentiable in means and
        ``rho``: ``d_rho = (d_sample * eps + d_std) / (1 + exp(-rho))`` (Blundell et al. 2015, section 3.2).
    """
    if not _fits([*means, *rhos]):
        return _by_operations(means, rhos, eps, center, around_mean=around_mean)
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
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*stds, *tensors)
        return *thetas, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, ctx.count
        stds, means, rhos, eps = (saved[i : i + count] for i in range(0, 4 * count, count))
        given = [
            torch.zeros_like(mean) if grad is None else grad.to_dense().contiguous()  # an embedding's may be sparse
            for grad, mean in zip(grads[:-1], means, strict=True)
        ]
        slopes = torch.zeros(3, dtype=torch.float64, device="cpu") if grads[-1] is None else grads[-1].contiguous()
        of_means, of_rhos = ([torch.empty_like(mean) for mean in means] for _ in range(2))
        _call("sample_backward", [means, rhos, eps, stds, given, of_means, of_rhos], ctx.numbers, slopes)
        return None, None, *of_means, *of_rhos, *[None] * len(eps)


def _by_operations(
    means: Sequence[Tensor], rhos: Sequence[Tensor], eps: Sequence[Tensor] | None, center: float, *, around_mean: bool
) -> tuple[list[Tensor], Tensor]:
    """:func:`sample` by PyTorch's operations."""
    stds = [softplus(rho) for rho in rhos]
    thetas = [std * factor for std, factor in zip(stds, eps or stds, strict=True)]
    if around_mean:
        thetas = [(mean + theta).to(mean.dtype) for mean, theta in zip(means, thetas, strict=True)]
    thetas = [dense(theta) for theta in thetas]
    sums = [_sum([(mean.to(rho.dtype) - center).square() for mean, rho in zip(means, rhos, strict=True)])]
    sums += [_sum([std.square() for std in stds]), _sum([std.log() for std in stds])]
    return thetas, torch.stack(sums)


def dense(theta: Tensor) -> Tensor:
    """A sample with a dense gradient, which may arrive sparse if it is an embedding's table."""
    result: Tensor = _Dense.apply(theta)  # type: ignore[no-untyped-call]
    return result


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> Tensor:
        return theta.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.to_dense()


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    sums = [tensor.sum(dtype=torch.float64) for tensor in tensors]
    return torch.stack([each.to(sums[0].device) for each in sums]).sum()  # a model may be on several devices


def _fits(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are contiguous float32 on the CPU, and there is a compiler."""
    return _library() is not None and all(
        t.dtype == torch.float32 and t.is_cpu and type(t) in (Tensor, nn.Parameter) and t.is_contiguous()
        for t in tensors
    )


def _call(name: str, columns: Sequence[Sequence[Tensor]], numbers: tuple[float, float], sums: Tensor) -> None:
    """Call a compiled function; a column without tensors has addresses of 0."""
    sizes, shapes = list(map(Tensor.numel, columns[0])), [tensor.shape for tensor in columns[0]]
    addresses = [
        placed(column, shapes, sums.device, torch.float32).addresses if column else [0] * len(sizes)
        for column in columns
    ]
    rows = np.array([sizes, *addresses], dtype=np.int64).T.copy()
    threads = 1 if sum(sizes) <= noise.ALONE else torch.get_num_threads()
    getattr(_library(), name)(len(sizes), rows.ctypes.data, *numbers, sums.data_ptr(), threads)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, or ``None`` if there is none."""
    library = native.load(native.read("sample.cpp"))
    if library is not None:
        for function in (library.sample, library.sample_backward):
            numbers = [ctypes.c_float, ctypes.c_float]
            function.argtypes = [ctypes.c_int64, ctypes.c_void_p, *numbers, ctypes.c_void_p, ctypes.c_int]
    return library
