"""The noise of large parameters by a compiled kernel: the numbers of :func:`bayesadam.noise.normal`, up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.optim import compiled

_MASK = 2**32 - 1


def fits(out: Tensor) -> bool:
    """Whether there is a kernel for a tensor: two tiles or more of contiguous float32."""
    return out.numel() >= 2 * noise.TILE and out.dtype == torch.float32 and out.is_contiguous()


@torch.no_grad()
def normal_(out: Tensor, seed: int, step: int, sample: int, index: int) -> Tensor:
    """Fill a tensor that fits with standard normals of the training stream, block by block."""
    flat = out.view(-1)
    for start in range(0, len(flat), noise.BLOCK):
        part = flat[start : start + noise.BLOCK]
        if fits(part):
            words = [start // noise.TILE, seed & _MASK, seed >> 32, step, sample, index]
            _kernel()(part, torch.tensor(words, device=out.device))
        else:
            noise.normal(seed, step, sample, index, part.shape, offset=(start,), full_shape=flat.shape, out=part)
    return out


@cache
def _kernel() -> Callable[..., None]:
    def fill(out: Tensor, words: Tensor) -> None:
        out.copy_(compiled.normals(out, words))

    return compiled.compile_kernel(fill)
