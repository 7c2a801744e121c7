"""Where tensors are in memory. Their data may be replaced and their storage resized by anybody at any time, so this is
looked up and checked before every use of an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add, attrgetter, ge, mul
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_SHAPE, _DTYPE, _SPARSE = attrgetter("shape"), attrgetter("dtype"), attrgetter("is_sparse")

PLAIN = {Tensor, nn.Parameter}
"""Classes of tensors that have their elements in memory of their own; a subclass may have them elsewhere."""


class Misplaced(RuntimeError):
    """Raised if a tensor is not as expected, or its storage ends before its last element.

    Args:
        message: The message.
        number: Number of the tensor.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Placed(NamedTuple):
    """Tensors that have been checked, with their addresses.

    Attributes:
        tensors: The tensors.
        addresses: Addresses of their first elements.
        is_plain: Whether all have the expected dtype, and their elements in order and without gaps.
    """

    tensors: Sequence[Tensor]
    addresses: Sequence[int]
    is_plain: bool

    def of(self, numbers: Any) -> Placed:
        """Some of them, by their numbers."""
        if len(numbers) == len(self.tensors):
            return self
        return Placed([self.tensors[n] for n in numbers], [self.addresses[n] for n in numbers], self.is_plain)


def placed(
    tensors: Sequence[Tensor],
    shapes: Sequence[torch.Size],
    device: torch.device,
    dtype: torch.dtype,
    *,
    converts: bool = False,
) -> Placed:
    """Check tensors and look their addresses up.

    Args:
        tensors: The tensors.
        shapes: Their shapes.
        device: Their device.
        dtype: Their dtype.
        converts: Whether they may have others.

    Raises:
        Misplaced: A tensor is not as expected.
    """
    for number, is_sparse in enumerate(map(_SPARSE, tensors)):
        if is_sparse:
            raise Misplaced("must be dense, got a sparse one", number)
    is_contiguous, dtypes = all(map(Tensor.is_contiguous, tensors)), set(map(_DTYPE, tensors))
    place = -1 if device.type == "cpu" else device.index
    is_right = list(map(_SHAPE, tensors)) == shapes and set(map(Tensor.get_device, tensors)) <= {place}
    if not (is_right and (converts or dtypes <= {dtype}) and are_backed(tensors, is_contiguous=is_contiguous)):
        for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
            is_right = tensor.shape == shape and tensor.get_device() == place and (converts or tensor.dtype == dtype)
            if not (is_right and are_backed([tensor])):
                bytes_left = tensor.untyped_storage().nbytes()
                raise Misplaced(
                    f"must be in memory with shape {tuple(shape)} and {dtype} on {device}, got shape "
                    f"{tuple(tensor.shape)} and {tensor.dtype} on {tensor.device} in {bytes_left} bytes",
                    number,
                )
    return Placed(tensors, list(map(Tensor.data_ptr, tensors)), is_contiguous and dtypes <= {dtype})


def are_backed(tensors: Sequence[Tensor], *, is_contiguous: bool = False) -> bool:
    """Whether the storage of each tensor holds all of its elements."""
    sizes = map(torch.UntypedStorage.nbytes, map(Tensor.untyped_storage, tensors))
    ends: Iterable[int] = map(_end, tensors)
    if is_contiguous:
        ends = map(add, map(Tensor.storage_offset, tensors), map(Tensor.numel, tensors))
    return all(map(ge, sizes, map(mul, ends, map(Tensor.element_size, tensors))))


def _end(tensor: Tensor) -> int:
    """Number of elements of a storage up to a tensor's last element."""
    if not tensor.numel():
        return 0
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + sum(steps) + 1
