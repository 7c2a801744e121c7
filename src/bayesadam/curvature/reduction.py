"""Detecting from its graph whether a loss is the mean or the sum over the examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_NODES = 1000
"""Number of nodes of a graph above which it is not searched, and nothing is known of the loss."""

_NEAR = 20
"""Number of nodes next to a loss among which that of a mean over labels is searched."""

_ONE_AXIS = ("SelectBackward0", "SliceBackward0", "IndexBackward0", "IndexSelectBackward0", "UnbindBackward0")
_JOINING = ("CatBackward0", "StackBackward0")


def reduction_of(loss: Tensor, size: int | None) -> str | None:
    """Detect whether a loss is the mean or the sum over the examples.

    The result is None unless it is certain. The search passes through additions of constants, changes of shape and
    dtype, and multiplication of a mean by a constant of at most 1 (as for micro-batches). The following are not
    certain: a scaled sum (which may be a mean), a mean times a larger constant (which may be a sum), a sum of several
    means (which may be of one example each), a reduction of values that may already have been reduced over the
    examples, and any loss of a single example.

    Args:
        loss: A scalar with a graph.
        size: Number of examples.

    Returns:
        ``"mean"``, ``"sum"``, or None.
    """
    if size is None or size <= 1 or loss.grad_fn is None:
        return None
    return _reduction(loss.grad_fn, size)


def ignored_labels(loss: Tensor, size: int | None) -> int:
    """Number of examples that a mean over labels leaves out (``ignore_index``), as far as is known: before the backward
    pass, and if every example has one label.

    Args:
        loss: A scalar with a graph.
        size: Number of examples.
    """
    queue = [] if loss.grad_fn is None else [loss.grad_fn]
    for node in queue:
        if node.name().startswith("NllLoss"):
            try:
                target, ignored = node._saved_target, node._saved_ignore_index  # type: ignore[attr-defined]
            except RuntimeError:  # the graph was backwarded
                return 0
            signed = ignored - 2**64 if ignored >= 2**63 else ignored
            return int((target == signed).sum()) if target.numel() == size and _own_reduction(node, "") == "mean" else 0
        queue += [following for following, _ in node.next_functions if following is not None][: _NEAR - len(queue)]
    return 0


def _reduction(node: Any, size: int) -> str | None:
    for _ in range(_NODES):
        name = node.name()
        inputs = [(following, number) for following, number in node.next_functions if following is not None]
        reduction = _own_reduction(node, name)
        if reduction is not None and not (_numel(inputs) == 1 and not hasattr(node, "_saved_reduction")):
            return reduction if _reduces_examples(node, size) else None
        if name.startswith(("AddBackward", "SubBackward")):
            if len(inputs) > 1:
                terms = {_reduction(following, size) for following, _ in inputs}
                return "sum" if terms == {"sum"} and name.startswith("Add") else None
        elif name.startswith(("MulBackward", "DivBackward")):
            if not _is_by_share(node, name, inputs) or _reduction(inputs[0][0], size) != "mean":
                return None
            return "mean"
        elif reduction is None and not name.startswith(
            ("ViewBackward", "ReshapeAlias", "SqueezeBackward", "ToCopyBackward", "CloneBackward", "AliasBackward")
        ):
            return None
        if len(inputs) != 1:
            return None
        node = inputs[0][0]
    return None


def _own_reduction(node: Any, name: str) -> str | None:
    """Reduction that a node applies to its input: a mean, a sum, or None for others."""
    if name.startswith(("MeanBackward", "SumBackward")):
        return "mean" if name.startswith("Mean") else "sum"
    return {1: "mean", 2: "sum"}.get(getattr(node, "_saved_reduction", 0))


def _is_by_share(node: Any, name: str, inputs: Sequence[Any]) -> bool:
    """Whether a product has a constant factor that is one number in (0, 1]."""
    try:
        other = getattr(node, "_saved_other", None)
    except RuntimeError:  # the graph was backwarded
        return False
    if len(inputs) != 1 or other is None or (isinstance(other, Tensor) and other.numel() != 1):
        return False
    return float(other) >= 1.0 if name.startswith("Div") else 0.0 < float(other) <= 1.0


def _numel(inputs: Sequence[Any]) -> int | None:
    """Number of values of the first input of a node, if it is known."""
    if not inputs:
        return None
    following, number = inputs[0]
    metadata = getattr(following, "_input_metadata", None)
    return None if metadata is None or len(metadata) <= number else math.prod(metadata[number].shape)


def _reduces_examples(node: Any, size: int) -> bool:
    """Whether a reduction certainly is over all examples, which its input has and no earlier node has reduced."""
    count = _numel([item for item in node.next_functions if item[0] is not None])
    if count is None or count < size or count % size or not _is_over_first(node):
        return False
    queue = [following for following, _ in node.next_functions if following is not None]
    seen = set(queue)
    while queue:
        if len(seen) > _NODES:
            return False
        node = queue.pop()
        name = node.name()
        if _own_reduction(node, name) is not None and _is_over_first(node):
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
