"""Networks inside others: the names of weights are those of the innermost."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def unwrapping(model: nn.Module) -> Iterator[nn.Module]:
    """A model, and what it wraps, from the outside in: every one has the same parameters, by other names.

    Wrappers are ``torch.compile``'s, ``DistributedDataParallel``, and any other that calls what is inside ``module``.
    Their forward may be another function than that of the network inside.
    """
    while True:
        yield model
        inner = getattr(model, "_orig_mod", None)
        inner = getattr(model, "module", None) if inner is None else inner
        if not isinstance(inner, nn.Module) or set(map(id, inner.parameters())) != set(map(id, model.parameters())):
            return
        model = inner
