"""Detecting from its graph whether a loss is the mean or the sum over the examples."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

_NODES = 1000
"""Number of nodes of a graph above which it is not searched, and nothing is known of the loss."""

_ONE_AXIS = ("SelectBackward0", "SliceBackward0", "IndexBackward0", "IndexSelectBackward0", "UnbindBackward0")
_JOINING = ("CatBackward0", "StackBackward0")
_SHAPING = ("ViewBackward", "ReshapeAlias", "SqueezeBackward", "ToCopyBackward", "CloneBackward", "AliasBackward")


def reduction_of(loss: Tensor, size: int | None) -> str | None:
    """Detect whether a loss is the mean or the sum over the examples.

    The result is None unless it is certain: the loss is, up to its shape and dtype, one of PyTorch's losses, or a mean
    or a sum of values that were not reduced over the examples before. Nothing is known of the loss of a single example.

    Args:
        loss: A scalar with a graph.
        size: Number of examples.

    Returns:
        ``"mean"``, ``"sum"``, or None.
    """
    node = loss.grad_fn
    while node is not None and node.name().startswith(_SHAPING):
        node = node.next_functions[0][0]
    if node is None or size is None or size <= 1 or not _reduces_examples(node, size):
        return None
    return _own_reduction(node)


def _own_reduction(node: Any) -> str | None:
    """Reduction that a node applies to its input: a mean, a sum, or None for others."""
    name = node.name()
    if name.startswith(("MeanBackward", "SumBackward")):
        return "mean" if name.startswith("Mean") else "sum"
    return {1: "mean", 2: "sum"}.get(getattr(node, "_saved_reduction", 0))


def _reduces_examples(node: Any, size: int) -> bool:
    """Whether a reduction certainly is over all examples, which its input has and no earlier node has reduced."""
    queue = [following for following, _ in node.next_functions if following is not None]
    if not queue or not _is_over_first(node):
        return False
    first, number = next(item for item in node.next_functions if item[0] is not None)
    count = math.prod(first._input_metadata[number].shape)
    if count < size or count % size:
        return False
    seen = set(queue)
    while queue:
        if len(seen) > _NODES:
            return False
        node = queue.pop()
        name = node.name()
        if _own_reduction(node) is not None and _is_over_first(node):
            return False
        if name in _JOINING or (name in _ONE_AXIS and getattr(node, "_saved_dim", 0) == 0):
            return False
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)
    return True


def _is_over_first(node: Any) -> bool:
    """Whether a reduction includes the first axis of its input."""
    dims = getattr(node, "_saved_dim", None)
    if dims is None or hasattr(node, "_saved_reduction"):
        return True
    sizes = node._saved_self_sym_sizes
    return not dims or any((dim + 2**64 if dim < 0 else dim) in (0, 2**64 - len(sizes)) for dim in dims)
