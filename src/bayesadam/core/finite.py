"""A check that gradients are finite, with one pass over them and a single number to read."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from bayesadam import native, noise
from bayesadam.sharding import full, is_sharded


def first_bad(grads: Sequence[Tensor], *, compiles: bool | None) -> int | None:
    """Number of the first gradient that is not finite or whose squares are not; ``None`` if all are finite.

    For a sharded gradient it is a collective call, with the same answer on all ranks.

    Args:
        grads: Gradients of any dtypes.
        compiles: Use a compiled function where possible, unless this is ``False``.
    """
    if not grads:
        return None
    walk = _compiled() if compiles is not False and _are_plain(grads) else None
    if walk is not None:
        return walk(grads)
    if math.isfinite(_read(full(nn.utils.get_total_norm(list(grads))))):
        return None
    for number, grad in enumerate(grads):
        # A norm overflows before its elements do, in float16 easily; in float32 it is refused, as squares overflow.
        wide = torch.promote_types(grad.dtype, torch.float32)
        if not math.isfinite(_read(full(torch.linalg.vector_norm(grad, dtype=wide)))):
            return number
    return None


@cache
def _compiled() -> Callable[[Sequence[Tensor]], int | None] | None:
    """The compiled function, or ``None`` if there is none."""
    try:
        function = native.load(native.read("finite.cpp")).first_bad
    except native.CompilationError:  # the kernels report this if compilation was requested
        return None
    function.restype = ctypes.c_int64

    def walk(grads: Sequence[Tensor]) -> int | None:
        sizes = list(map(Tensor.numel, grads))
        table = np.array([*map(Tensor.data_ptr, grads), *sizes], dtype=np.int64)
        threads = 1 if sum(sizes) <= noise.ALONE else torch.get_num_threads()
        found: int = function(ctypes.c_int64(len(sizes)), ctypes.c_void_p(table.ctypes.data), ctypes.c_int(threads))
        return None if found < 0 else found

    return walk


def _are_plain(grads: Sequence[Tensor]) -> bool:
    """Whether all gradients are contiguous float32 in CPU memory."""
    types, contiguous = set(map(type, grads)), all(map(Tensor.is_contiguous, grads))
    return types == {Tensor} and contiguous and all(g.dtype is torch.float32 and g.is_cpu for g in grads)


def _read(value: Tensor) -> float:
    """A 0-d tensor's number, without a device synchronisation if it is in CPU memory."""
    if is_sharded(value) or value.device.type != "cpu":
        return float(value)
    return float(value.detach().double().numpy())
