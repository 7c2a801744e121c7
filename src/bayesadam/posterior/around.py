"""Samples of independent Gaussians on a GPU, by one kernel for all tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import noise
from bayesadam.native import device as kernels
from bayesadam.native.memory import PLAIN, are_backed


class Around:
    """Fills several tensors with samples of independent Gaussians, ``mean + deviation * normal``, in one launch, on a
    device for which :func:`has_right_kernel`.

    Args:
        means: Means by the index of the parameter, with any values at the time of a call.
        deviations: Standard deviations, in the same order.
        seed: Seed, as for :func:`bayesadam.noise.normal`.
    """

    def __init__(self, means: Mapping[int, Tensor], deviations: Sequence[Tensor], seed: int) -> None:
        self.means, self.deviations, self.seed = means, deviations, seed
        self._places: list[Any] = []
        self._table: NDArray[np.int64] | None = None

    def fill(self, outs: Sequence[Tensor], sample: int) -> bool:
        """Fill tensors, in the order of the means, with sample ``sample``.

        Returns:
            Whether it was done. It is not done for tensors that are not float32, on several devices, or of different
            memory formats.
        """
        tensors = [*outs, *self.means.values(), *self.deviations]
        if not are_backed(tensors):
            raise RuntimeError("means, standard deviations and tensors to fill must be in memory, got freed storage")
        places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
        if places != self._places:
            self._places, self._table = places, self._made(outs)
        if self._table is None:
            return False
        noise.checked(self.seed, 0, sample, max(self.means), noise.POSTERIOR)
        self._table[:, 6] = sample | noise.POSTERIOR << 28
        kernels.fill(self._table, outs[0].device)
        torch.autograd.graph.increment_version(list(outs))
        return True

    def _made(self, outs: Sequence[Tensor]) -> NDArray[np.int64] | None:
        """The table of :func:`bayesadam.native.device.fill`."""
        tensors = [*outs, *self.means.values(), *self.deviations]
        kinds = {(tensor.device, tensor.dtype) for tensor in tensors}
        if not set(map(type, tensors)) <= PLAIN or kinds != {(tensors[0].device, torch.float32)}:
            return None
        rows = []
        for (index, mean), deviation, out in zip(self.means.items(), self.deviations, outs, strict=True):
            order = kernels.order_of(out, mean, deviation)
            if order is None or not out.shape == mean.shape == deviation.shape:
                return None
            row = noise.table_row(out.data_ptr(), (index, 0, out.numel(), out.numel()), self.seed, 0, 0)
            rows.append([*row, mean.data_ptr(), deviation.data_ptr(), *order])
        return np.array(rows, dtype=np.int64)


@cache
def has_right_kernel(device: torch.device) -> bool:
    """Whether there is a kernel on a device that gives the numbers of PyTorch's operations."""
    if not noise.has_kernel(device):
        return False
    mean = torch.linspace(-1.0, 1.0, 6000, device=device).view(10, 6, 10, 10)
    expected = mean + mean.square() * noise.normal(9, 0, 2, 3, mean.shape, stream=noise.POSTERIOR, device=device)
    for order in (torch.contiguous_format, torch.channels_last):
        placed = mean.contiguous(memory_format=order)
        out = torch.empty_like(placed)
        if not Around({3: placed}, [placed.square()], 9).fill([out], 2):
            return False
        if not torch.allclose(out, expected, rtol=1e-4, atol=1e-5):
            return False
    return True
